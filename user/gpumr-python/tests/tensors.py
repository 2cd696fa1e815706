# SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
"""What a program in Python does with the module, on stand-ins of libcuda and libibverbs (wheel.rs)."""

import ctypes
import errno
import gc
import os
import threading
import unittest
import weakref

import gpumr

cuda = ctypes.CDLL("libcuda.so.1")
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.stand_in_domain.restype = ctypes.c_void_p
# The contexts of both GPUs. The first one is current.
contexts = [ctypes.c_void_p(), ctypes.c_void_p()]


def checked(status):
    assert status == 0, status


def turn():
    """Makes the context of the other GPU current."""
    contexts.reverse()
    checked(cuda.cuCtxSetCurrent(contexts[0]))


def allocate(size):
    """Allocates memory of the current GPU, and makes the context of the other one current."""
    at = ctypes.c_uint64()
    checked(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_uint64(size)))
    turn()
    return at.value


def free(at):
    checked(cuda.cuMemFree_v2(ctypes.c_uint64(at)))


def live():
    counts = (ctypes.c_uint * 3)()
    verbs.stand_in_counts(counts)
    return counts[2]


def setUpModule():
    checked(cuda.cuInit(0))
    for gpu, context in enumerate(contexts):
        checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu))
    turn()


PD = verbs.stand_in_domain()


class Interface:
    """As CuPy's arrays and Numba's."""

    def __init__(self, at, shape, typestr="<f4", **more):
        self.__cuda_array_interface__ = {"data": (at, False), "shape": shape, "typestr": typestr, "version": 3, **more}


class Tensor:
    """As torch's."""

    def __init__(self, at, shape, strides, size, device="cuda:0"):
        self.at, self.shape, self.strides, self.size, self.device = at, shape, strides, size, device

    is_cuda = property(lambda self: self.device.startswith("cuda"))

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

    def data_ptr(self):
        return self.at

    def element_size(self):
        return self.size

    def stride(self):
        return self.strides


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class Dlpack:
    """As JAX's arrays of types that the interface lacks."""

    def __init__(self, at, shape, strides=None, bits=16, offset=0, device=2, name=b"dltensor"):
        numbers = lambda of: of and (ctypes.c_int64 * len(of))(*of)
        self.name, self.shape, self.strides = name, numbers(shape), numbers(strides)
        self.tensor = Managed(
            at, device, 0, len(shape), 4, bits, 1, self.shape, self.strides, offset, None, None
        )

    def __dlpack_device__(self):
        return (self.tensor.device_type, 0)

    def __dlpack__(self, *, stream=None):
        assert stream is None, "JAX 0.11 takes no -1"
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), self.name, None)


class Tensors(unittest.TestCase):
    def setUp(self):
        self.cache = gpumr.Cache(way="dma-buf", sweep_ms=0)
        self.at = allocate(1 << 20)

    def tearDown(self):
        self.cache.shrink()
        free(self.at)

    def spans(self, array, before, length):
        with self.cache.register(array, PD) as lease:
            self.assertEqual((lease.addr, lease.length), (self.at + before, length))

    def test_every_kind_of_array(self):
        at = self.at
        self.spans(Tensor(at, (2, 3), (3, 1), 2), 0, 12)
        self.spans(Tensor(at, (2, 3), (100, 2), 2), 0, 2 * (100 + 4 + 1))
        self.spans(Tensor(at, (), (), 8), 0, 8)
        self.spans(Interface(at, (4, 4)), 0, 64)
        self.spans(Interface(at, (4, 4), strides=None), 0, 64)
        self.spans(Interface(at, (4, 4), "|u1", strides=(256, 1)), 0, 3 * 256 + 4)
        self.spans(Interface(at + 12, (4,), strides=(-4,)), 0, 16)
        self.spans(Dlpack(at, (3, 5)), 0, 30)
        self.spans(Dlpack(at, (3, 5), (8, 1), offset=4096), 4096, 2 * (2 * 8 + 4 + 1))
        self.spans(Dlpack(at, (3,), bits=4), 0, 3)

    def test_a_lease_has_what_work_requests_need(self):
        lease = self.cache.register(Interface(self.at, (100,)), PD)
        self.assertEqual(lease.way, "dma-buf")
        self.assertTrue(lease.lkey and lease.rkey and lease.mr and lease.valid())
        self.assertIn("400 bytes", repr(lease))
        again = self.cache.register(Interface(self.at, (100,)), PD)
        self.assertEqual(again.mr, lease.mr)
        self.assertEqual((self.cache.stats()["hits"], self.cache.stats()["misses"]), (1, 1))
        self.cache.forget(PD)
        self.assertEqual(live(), 1)
        again.release()
        lease.release()
        lease.release()
        self.assertEqual(live(), 0)
        for use in (lambda: lease.lkey, lambda: lease.valid()):
            self.assertRaisesRegex(ValueError, "was released: register once more", use)
        self.assertIn("released", repr(lease))

    def test_several_domains_are_served_in_one_call(self):
        # The stand-in's device once more: another struct ibv_pd.
        another = ctypes.create_string_buffer(ctypes.string_at(PD, 16), 16)
        pds = [PD, ctypes.addressof(another)]
        tensor = Interface(self.at, (100,))
        leases = self.cache.register_all(tensor, pds)
        self.assertEqual((len({lease.mr for lease in leases}), live()), (2, 2))
        self.assertEqual([lease.length for lease in leases], [400, 400])
        again = self.cache.register(tensor, pds[1])
        self.assertEqual(again.mr, leases[1].mr, "the leases have the order of the domains")
        again.release()
        for lease in leases:
            lease.release()
        self.cache.shrink()
        for wrong, text in (([PD, None], "pd is a NoneType"), ([], "there are no protection domains")):
            with self.assertRaisesRegex((TypeError, ValueError), text):
                self.cache.register_all(tensor, wrong)
        with self.assertRaises(gpumr.Error):
            self.cache.register_all(Interface(self.at + (1 << 20) - 4, (100,)), pds)
        self.assertEqual(live(), 0, "all or none")
        # A struct ibv_pd has the pointer to its device, then its handle.
        another[8:12] = (7).to_bytes(4, "little")
        os.environ.update(STAND_IN_ERRNO=str(errno.EINVAL), STAND_IN_HANDLE="7")
        try:
            with self.assertRaises(gpumr.Error) as caught:
                self.cache.register_all(tensor, pds)
        finally:
            del os.environ["STAND_IN_ERRNO"], os.environ["STAND_IN_HANDLE"]
        self.assertEqual((caught.exception.errno, live()), (errno.EINVAL, 1))
        hits = self.cache.stats()["hits"]
        self.cache.register(tensor, PD).release()
        self.assertEqual(self.cache.stats()["hits"], hits + 1, "what the first domain had stays cached")
        self.assertGreater(self.cache.shrink(), 0, "and nobody uses it")
        self.assertEqual(live(), 0)
        for lease in gpumr.register_all(tensor, tuple(pds)):
            lease.release()
        for pd in pds:
            gpumr.cache().forget(pd)

    def test_a_lease_keeps_its_tensor_and_domain(self):
        class Domain:
            pd = PD

        tensor, domain = Interface(self.at, (4,)), Domain()
        kept = [weakref.ref(tensor), weakref.ref(domain)]
        lease = self.cache.register(tensor, domain)
        del tensor, domain
        gc.collect()
        self.assertTrue(all(one() for one in kept), "another may get the memory")
        lease.release()
        gc.collect()
        self.assertFalse(any(one() for one in kept))

    def test_idle_bytes_bounds_what_nobody_uses(self):
        cache = gpumr.Cache(way="dma-buf", sweep_ms=0, free_bytes=0, idle_bytes=4096)
        with cache.register(Interface(self.at, (1024,)), PD):
            cache.register(Interface(self.at + 4096, (1024,)), PD).release()
            self.assertEqual(cache.stats()["entries"], 2, "the one in use does not count")
        self.assertEqual(cache.stats()["entries"], 1)
        cache.shrink()

    def test_freed_memory_is_never_given_out_again(self):
        # As large as a block, so that the other GPU's memory is at its address afterwards.
        at = allocate(2 << 20)
        array = Interface(at, (2048,))
        with self.cache.register(array, PD) as lease:
            key = lease.lkey
            free(at)
            self.assertFalse(lease.valid())
        self.assertEqual(allocate(2 << 20), at)
        with self.cache.register(array, PD) as lease:
            self.assertNotEqual(lease.lkey, key)
        free(at)
        self.cache.sweep()
        self.assertEqual((live(), self.cache.stats()["stale"]), (0, 2))

    def test_shrink_lets_go(self):
        self.cache.register(Interface(self.at, (4096,)), PD).release()
        self.assertEqual((live(), self.cache.shrink(), live()), (1, 16384, 0))

    def test_exports_over_pcie(self):
        cache = gpumr.Cache(way="dma-buf", pcie=True)
        self.assertRaisesRegex(gpumr.Error, "CUDA_ERROR_NOT_SUPPORTED", cache.register, Interface(self.at, (4,)), PD)
        os.environ["STAND_IN_COHERENT"] = "1"
        for of, flags in ((cache, 1), (self.cache, 0)):
            of.register(Interface(self.at, (4,)), PD).release()
            self.assertEqual(cuda.stand_in_export_flags(), flags)

    def test_limits(self):
        cache = gpumr.Cache(way="dma-buf", entries=2)
        for n in range(5):
            cache.register(Interface(self.at + 8192 * n, (100,)), PD).release()
        self.assertEqual((cache.stats()["entries"], cache.stats()["evicted"]), (2, 3))

    def test_the_process_has_a_cache(self):
        self.assertIs(gpumr.cache(), gpumr.cache())
        with gpumr.register(Tensor(self.at, (8,), (1,), 4), PD, 1) as lease:
            self.assertEqual(lease.length, 32)
        self.assertEqual(gpumr.cache().shrink(), 32)

    def test_threads_do_not_wait_for_python(self):
        def work():
            for n in range(200):
                self.cache.register(Interface(self.at + 4096 * (n % 7), (10,)), PD).release()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.cache.stats()["entries"], 7)

    def test_a_child_is_told(self):
        lease = self.cache.register(Interface(self.at, (10,)), PD)
        child = os.fork()
        if not child:
            try:
                self.cache.register(Interface(self.at, (10,)), PD)
            except gpumr.Error as error:
                lease.release()
                os._exit(error.errno)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), errno.EPERM)
        self.assertEqual(live(), 1)
        lease.release()

    def test_wrong_input_is_named(self):
        at, good = self.at, Interface(self.at, (4,))
        host = (ctypes.c_char * 64)()
        for array, kind, words in [
            (object(), TypeError, "a object is no array on a GPU: it has neither"),
            (at, TypeError, "a int is no array on a GPU"),
            (Tensor(0, (4,), (1,), 4, "cpu"), ValueError, "a tensor on cpu is not on a CUDA GPU: move it there"),
            (Dlpack(at, (4,), device=1), ValueError, "DLPack's device type 1 is not on a CUDA GPU"),
            (Dlpack(at, (4,), name=b"used_dltensor"), ValueError, "PyCapsule"),
            (Interface(at, (4,), strides=(4, 4)), ValueError, "fit no memory"),
            (Interface(at, (1 << 40, 1 << 40)), ValueError, "fit no memory"),
            (Interface(at, (-4,), strides=(4,)), gpumr.Error, "pass the end|no memory"),
            (Interface(at, (4,), "<f"), ValueError, "has the typestr '?\"?<f"),
            (Interface(at, (4, 0)), gpumr.Error, "has no bytes"),
            (Interface(at, (1 << 30,)), gpumr.Error, "leave allocated memory at"),
            (Interface(ctypes.addressof(host), (4,)), gpumr.Error, "plain host memory"),
        ]:
            self.assertRaisesRegex(kind, words, self.cache.register, array, PD)

        class Closed:
            pd = 0

        for pd, kind, words in [
            (None, TypeError, "pd is a NoneType: pass a pyverbs.pd.PD, or the address"),
            (True, TypeError, "pd is a bool"),
            (Closed(), ValueError, "the protection domain is NULL: it was closed"),
            (0, ValueError, "is NULL"),
            (3, ValueError, "pd 0x3 is no address of a struct ibv_pd: .*not the kernel's handle"),
            (PD + 1, ValueError, "is no address"),
            (-8, OverflowError, ""),
        ]:
            self.assertRaisesRegex(kind, words, self.cache.register, good, pd)
        self.assertRaisesRegex(gpumr.Error, '"fast" is no way to register', gpumr.Cache, way="fast")
        with self.assertRaises(gpumr.Error) as caught:
            self.cache.register(Interface(ctypes.addressof(host), (4,)), PD)
        self.assertEqual((caught.exception.errno, live()), (errno.EFAULT, 0))


if __name__ == "__main__":
    unittest.main()
