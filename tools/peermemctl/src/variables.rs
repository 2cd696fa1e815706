// SPDX-License-Identifier: GPL-2.0
//! Names the variables that verdicts depend on, and reads how they are written.

use std::collections::BTreeMap;

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// The variable that picks the GPUs of a program.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// The variable that says in which order CUDA counts them.
pub const ORDER: &str = "CUDA_DEVICE_ORDER";

/// The variables of Mooncake's configuration (MooncakeConfig of mooncake-wheel/mooncake/mooncake_config.py), and the
/// option of vLLM's connector and of SGLang, as arguments of their own.
pub const MOONCAKE_PROTOCOL: &str = "MOONCAKE_PROTOCOL";
pub const MOONCAKE_CONFIGURATION: &str = "MOONCAKE_CONFIG_PATH";
pub const VLLM_PROTOCOL: &str = "mooncake_protocol";
pub const SGLANG_DEVICES: &str = "--disaggregation-ib-device";

/// The beginnings of the names of variables that verdicts depend on.
pub const BEGINNINGS: [&str; 10] =
    ["NCCL_", "UCX_", "NVSHMEM_", "FI_", "MC_", "MOONCAKE_", "OMPI_MCA_", "WITH_NVIDIA_PEERMEM", VISIBLE, ORDER];

/// Reads `NAME=VALUE`.
pub fn assignment(word: &str) -> Option<(String, String)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then(|| (name.to_owned(), value.to_owned()))
}

/// Splits a part of a script into words, and drops the quotes.
pub fn split_words(part: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in part.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}
