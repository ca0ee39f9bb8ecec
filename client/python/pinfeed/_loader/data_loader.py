# SPDX-License-Identifier: Apache-2.0
"""A loader for any Python dataset, in place of ``torch.utils.data.DataLoader``.

In: that class's arguments. Out: what it yields.

Long because: a fifth of it describes the class to its users.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
import warnings
import weakref
from typing import Any, Callable, Dict, Generic, Iterator, List, Optional, Tuple, TypeVar, Union

from .._base.checks import Checks, shown, to_integer
from .._base.errors import Code, Error, invalid
from .._base.gpu_errors import torch_fault, unusable
from .._base.optional_torch import torch_or_none
from .._feed.device import ordinal_of
from .._worker.epoch_state import Drawn, Epoch, Order, check_state
from .._worker.fetch import Kind, Recipe, collate, collates_as_delivered, default_function, kind_of_dataset
from .._worker.index_log import MAX_IN_FLIGHT
from .._worker.iterable import has_state, same_state, state_of, told
from .._worker.kept_generators import find_kept_generator
from .._worker.lanes import MAX_LANES, LaneOptions, check_saved, is_known, saved_between, saved_stream_between, saved_unknown_stream, why_unknown
from .._worker.rows import rows_of
from .._worker.worker import Job
from .arguments import DEFAULT_PREFETCH, check_order, check_workers, context_of, number_of_workers, refuse_greenlets, warn_of_equal_ranks, warn_of_many_workers
from .carried import Carried, batches_of_samples
from .images import LoaderImages, images_of
from .iterator import LoaderIterator, SingleIterator
from .samplers import InfiniteSampler, default_batch_sampler, default_sampler
from .share import Share, share_of
from .worker_iterator import WorkerIterator
from .worker_pool import WorkerPool, this_process

_Batch = TypeVar("_Batch", covariant=True)

_FIXED = ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers")
_MIN_BATCH_BYTES = 4096  # room for the message of an error


class DataLoader(Generic[_Batch]):
    """Takes what ``torch.utils.data.DataLoader`` takes and yields what it yields, from any Python dataset: change the
    import and keep the code.

    With num_workers=0 the calling thread loads, without a daemon. Otherwise worker processes write batches into memory
    of the daemon, which this process maps. Batches are neither pickled nor sent through a pipe. A batch's tensors are
    views of that memory, which is used again once all of them are gone. If the trainer keeps more than two batches,
    further ones are copies.

    The first batch says how much memory each batch gets. A later one that needs more gets memory of its own, with one
    LargeBatchWarning, and the next epoch has room for it. The daemon charges that memory to the user; beyond what the user
    may have, the batch is a ResourceExhaustedError with its indices and size. `max_batch_bytes` sets a fixed size instead: a
    batch that needs more is such an error.

    seeding="sample", for datasets with `__getitem__`: before each sample, the global generators of ``random``, NumPy and
    torch are seeded from the epoch's seed and the sample's place and index. Random transforms therefore do not depend on
    the number of workers, or on which worker loads a sample. `__getitems__` gets one seed for its batch. A worker that
    dies is replaced, and its batch is loaded again. Three deaths at the same batch, or three in a row of the same
    worker number without a batch in between, raise RuntimeError.

    seeding="worker": every batch and random number as in torch. Workers take turns, and each is seeded once. It is the
    default with a generator or a worker_init_fn, unless `share` is given, and where the dataset or the collate_fn keeps a
    generator of its own, unless `share` or `retry_after` is given: then a warning says where it is. Iterable datasets always
    have it. A worker that dies is replaced too: another one continues from the global generators' states behind its last batch. An
    iterable dataset needs `state_dict` and `load_state_dict` for that, or its iterator does. Without them a worker's death
    raises RuntimeError, as in torch.

    With num_workers=0 nothing is seeded.

    ragged, pad: for tensors, arrays and lists of numbers whose shapes differ between the samples of a batch. `ragged` has
    names of them (keys, attributes or positions in a sample; True: all), which become a `Ragged` of their rows. `pad` is
    a number to fill them up with, or a dict from names to numbers: each becomes one tensor as large as the largest, and
    in a dict ``<key>_length`` is added, the number of rows of each. Others must have equal shapes, as in torch.

    retry_after=T: a batch that takes a worker longer than T seconds goes to another worker too, which writes it to
    other memory. The memory of the first worker is left alone until it is done or has ended. At most three workers try a
    batch. A worker that hangs costs up to two of the batches in flight. None: a hung worker delays its batch for ever. Not
    with seeding="worker" or iterable datasets.

    share="broadcast" with `group` and `group_size`: so many processes of this host, each with a loader of the same
    arguments, get the same batches, and each batch is made once, by a worker of one of them. Each member brings its
    num_workers. When a member leaves, its workers finish what they have begun, and those of the others make the rest.
    Every epoch begins when all members have begun it. Order and seeds must be the same in all of them, as by
    torch.manual_seed or generator= with the same seed; dataset class, length, structure of a batch and `fingerprint` are
    compared. Batches are copies. A batch larger than its place is an error: give max_batch_bytes then.

    transforms: for samples that have an `EncodedImage` in place of a tensor. The daemon's threads decode and transform these
    images, which become one tensor, as ``pinfeed.open(..., transforms=...)`` gives it. The transforms are those of `open`
    (torchvision's too), and must give all images one shape. Random ones depend on the epoch's seed and the sample's index
    only; if a sample has several images, or a batch a sample twice, each draws numbers of its own. Needs workers and the
    default collation. `max_encoded_bytes`: what each batch has room for at least, of files' bytes or paths; default: twice those
    of the first batch. A batch that does not fit raises ResourceExhaustedError. `max_batch_bytes` is then without these and
    without the decoded images. An image that cannot be used raises an error in place of its batch that names the sample and the path,
    and the loop may go on. With on_bad_sample="zero" it is zeros, and a warning is logged.

    device="cuda:0" moves each batch's tensors to that GPU. The GPU reads the workers' memory itself, on a stream of the
    loader's own. The batch can be used at once on the stream that is current when it is taken. pin_memory then has no
    effect. A GPU that cannot be used is an error before a worker starts. Without device, pin_memory=True copies each batch
    to page-locked memory in the calling thread. timeout=T: no batch within T seconds raises DeadlineExceededError, a
    RuntimeError. in_order=False is accepted; batches come in order. address: the daemon's socket, as for `open`.

    `state_dict` and `load_state_dict` continue in the middle of an epoch. Threads: one. If the daemon is away when a later
    epoch begins, the loader waits for it for 5 minutes.
    """

    dataset: Any
    batch_size: Optional[int]
    num_workers: int
    prefetch_factor: Optional[int]
    persistent_workers: bool
    pin_memory: bool
    pin_memory_device: str
    drop_last: bool
    timeout: float
    sampler: Any
    batch_sampler: Any
    collate_fn: Callable[[Any], Any]
    generator: Any
    __initialized = False
    _chooses = False  # seeding was not given, and may become "worker" later
    _pool: Optional[WorkerPool] = None  # persistent workers
    # Private attributes of torch's loaders, for subclasses that make torch's iterators themselves.
    _iterator: Any = None  # one of those, with persistent workers
    _dataset_kind: int
    _IterableDataset_len_called: Optional[int] = None

    def __init__(
        self,
        dataset: Any,
        batch_size: Optional[int] = 1,
        shuffle: Optional[bool] = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Optional[Callable[[Any], Any]] = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Optional[Callable[[int], Any]] = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: Optional[int] = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: Any = None,
        max_batch_bytes: Optional[int] = None,
        seeding: Optional[str] = None,
        ragged: Any = None,
        pad: Any = None,
        retry_after: Optional[float] = None,
        share: Optional[str] = None,
        group: Optional[str] = None,
        group_size: Optional[int] = None,
        fingerprint: Optional[str] = None,
        transforms: Any = None,
        max_encoded_bytes: Optional[int] = None,
        on_bad_sample: Optional[str] = None,
        address: Union[str, "os.PathLike[str]", None] = None,
    ) -> None:
        self._kind: Kind = kind_of_dataset(dataset)
        self._dataset_kind = int(self._kind is Kind.ITERABLE)  # torch's _DatasetKind
        self.dataset = dataset
        self.num_workers = num_workers = number_of_workers(num_workers)
        check_workers(num_workers, prefetch_factor, persistent_workers, timeout, seeding)
        factor = to_integer(prefetch_factor)
        self.prefetch_factor = DEFAULT_PREFETCH if num_workers > 0 and factor is None else factor
        self.persistent_workers = persistent_workers
        self.timeout = timeout
        self.multiprocessing_context = multiprocessing_context
        check_order(self._kind, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if type(self)._index_sampler is not DataLoader._index_sampler:
            raise invalid(f"DataLoader: {type(self).__name__} has an _index_sampler of its own, which is not used here: give it as sampler or batch_sampler")
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.worker_init_fn = worker_init_fn
        self.in_order = in_order
        self.generator = generator
        if batch_sampler is not None:
            batch_size = None
            drop_last = False
        if sampler is None:
            sampler = InfiniteSampler() if self._kind is Kind.ITERABLE else default_sampler(dataset, bool(shuffle), generator)
        if batch_size is not None and batch_sampler is None:
            batch_sampler = default_batch_sampler(sampler, batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self._batched: bool = batch_sampler is not None
        self.collate_fn = default_function(self._batched) if collate_fn is None else collate_fn
        checks = Checks()
        self._rows = rows_of(checks, ragged, pad)
        if self._rows is not None and (collate_fn is not None or not self._batched):
            name = "ragged" if self._rows.ragged else "pad"
            checks.add(name, "applies to batches that are collated by default: omit collate_fn, and give a batch_size")
        elif self._rows is not None:
            self.collate_fn = functools.partial(collate, rows=self._rows)

        self._chooses = seeding is None
        reasons: List[str] = []
        if seeding is None and share is None:
            reasons = [name for name, value in (("generator", generator), ("worker_init_fn", worker_init_fn)) if value is not None]
        self._seeding: str = seeding or ("worker" if reasons else "sample")
        self._excludes_worker: str = "share" if share is not None else "retry_after" if retry_after is not None else ""
        self._carried: Carried = Carried()
        kept = self._heed_kept_generator(4)
        reasons += [kept] if kept and self._seeding == "worker" else []
        default = f', the default with {" and ".join(reasons)} (give seeding="sample")' if reasons else ""
        why = "an iterable dataset" if self._kind is Kind.ITERABLE else 'seeding="worker"' + default
        if self._lane_options is not None and num_workers > MAX_LANES:
            checks.add("num_workers", f"{num_workers} is over {MAX_LANES}, the limit with {why}")
        elif self._lane_options is not None and num_workers * (self.prefetch_factor or 1) > MAX_IN_FLIGHT:
            checks.add("prefetch_factor", f"num_workers * prefetch_factor is over {MAX_IN_FLIGHT}, the limit of batches in flight with {why}")

        self._max_batch_bytes: int = 0  # what the first batch needs
        if max_batch_bytes is not None:
            limit = checks.integer("max_batch_bytes", max_batch_bytes, 1, 2**62, ", or None for what the batches need")
            self._max_batch_bytes = max(limit, _MIN_BATCH_BYTES)
        checks.address(address)
        self._retry_after: float = 0.0  # never
        if retry_after is not None:
            self._retry_after = checks.seconds("retry_after", retry_after, 0.001, ", or None")
        self._share: Optional[Share] = share_of(checks, share, group, group_size, fingerprint)
        for name, value in (("retry_after", retry_after), ("share", share)):
            if value is not None and not num_workers:
                checks.add(name, f"{shown(value)} needs num_workers > 0")
            elif value is not None and self._lane_options is not None:
                checks.add(name, f"{shown(value)} is not possible with {why}: a batch depends on those that its worker made before")
        self._encoded: Optional[LoaderImages] = images_of(checks, transforms, max_encoded_bytes, on_bad_sample, collate_fn is None and self._batched, num_workers)
        self._ordinal: int = ordinal_of(checks, device)  # of the GPU that gets the batches; -1: the host
        checks.raise_faults()
        if self._ordinal >= 0 and torch_or_none() is None:
            raise Error(Code.FAILED_PRECONDITION, f"device: {device!r} needs torch, which is not installed; omit device for batches on the host")
        self._address: Optional[str] = None if address is None else os.fspath(address)
        self._carried.capacity = self._max_batch_bytes
        self._warned_of_state = False  # the dataset's is not part of the loader's
        self._epochs: int = 0  # that began; with share=, the number of the latest, which a loaded state may say
        self._kept_starts: Optional[List[bytes]] = None  # of the persistent workers, until the next epoch has begun: an error ends them before
        self._repeat: int = 0  # epochs that began with the persistent workers' seed
        self._base_seed = 0
        self._loaded: Optional[Dict[str, Any]] = None
        self._drawn: Optional[Drawn] = None  # of the sampler, in the latest epoch
        self._samplers_restored = False  # before the latest epoch, or it was not asked in those since
        self._streams: Tuple[Callable[[], Optional[SingleIterator]], ...] = ()  # references to those of an iterable dataset
        self._running: Callable[[], Optional[LoaderIterator]] = _nothing
        self.__initialized = True
        warn_of_many_workers(self.num_workers)

    @property
    def multiprocessing_context(self) -> Any:
        """How worker processes are started: a context of `multiprocessing`, or None for its default."""
        return self.__context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        self.__context = context_of(context, self.num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        if self._chooses and name == "worker_init_fn" and value is not None and self._pool is None and not self._excludes_worker:
            self._seeding = "worker"  # as Lightning's seed_everything(workers=True)
        super().__setattr__(name, value)

    def _heed_kept_generator(self, stacklevel: int) -> str:
        """Chooses seeding="worker" where the dataset or the collate_fn keeps a generator of its own, or warns where that is not possible. Returns where it
        is; empty: there is none.
        """
        place = ""
        if self._chooses and self._seeding == "sample" and self.num_workers and self._kind is not Kind.ITERABLE and self._pool is None:
            place = find_kept_generator(dataset=self.dataset, collate_fn=self.collate_fn)
        if place and not self._excludes_worker:
            self._seeding = "worker"
        elif place:
            self._carried.warn_of_kept_generator(place, self._excludes_worker, stacklevel)
        return place

    def check_worker_number_rationality(self) -> None:
        """Warns if there are more workers than CPUs."""
        warn_of_many_workers(self.num_workers)

    # ---- Iterating ----

    def __len__(self) -> int:
        """Batches per epoch: those of the sampler; for an iterable dataset, what its length says."""
        if self._kind is Kind.ITERABLE:
            self._IterableDataset_len_called = samples = len(self.dataset)
            return batches_of_samples(samples, self.batch_size, self.drop_last)
        return len(self._index_sampler)

    @property
    def _index_sampler(self) -> Any:
        return self.batch_sampler if self._batched else self.sampler

    @property
    def _auto_collation(self) -> bool:
        return self._batched

    @property
    def _lane_options(self) -> Optional[LaneOptions]:  # asked each time: num_workers may be set, as torch's
        if self.num_workers and (self._seeding == "worker" or self._kind is Kind.ITERABLE):
            return LaneOptions(self._kind, self.batch_size or 1, self.drop_last)
        return None

    @property
    def _workers(self) -> int:
        """How many workers the next epoch has: persistent ones are as many as they were, as torch's, also those that take their places."""
        if self._pool is not None and not self._pool.stopped:
            return len(self._pool.pipes)
        return self.num_workers if self._kept_starts is None else len(self._kept_starts)

    @property
    def _recipe(self) -> Recipe:
        default = self._rows is not None or (
            self._batched and self.collate_fn is default_function(True) and (self._encoded is not None or collates_as_delivered())
        )
        return Recipe(self.dataset, self._batched, None if default else self.collate_fn, self._rows, self._encoded is not None)

    def _order(self) -> Order:
        samples = numbers = None
        if self._kind is not Kind.ITERABLE:
            with contextlib.suppress(Exception):  # whatever a length raises
                samples = len(self.dataset)
            seeding = "sample" if self._lane_options is None else "worker"
            numbers = f'num_workers > 0, seeding="{seeding}"' if self.num_workers else "num_workers=0"
        return Order(self.sampler, self.batch_sampler, self.generator, self.batch_size, samples, numbers)

    def __iter__(self) -> Iterator[_Batch]:
        """Begins an epoch, or continues the one of a loaded state. With persistent workers it ends the iterator before; with a
        loaded state, and an iterable dataset in this process, all before. After an error the position is as before; `generator` and
        samplers may have gone on, as in torch.
        """
        persistent = self.persistent_workers and self.num_workers > 0
        if persistent and hasattr(self._iterator, "_reset"):  # torch's; a subclass may keep another one there
            self._iterator._reset(self)
            kept: Iterator[_Batch] = self._iterator
            return kept
        iterator, torch = self._get_iterator(), torch_or_none()
        if torch is not None and isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter):  # of a subclass
            if self._loaded is not None:
                raise Error(Code.FAILED_PRECONDITION, f"the iterator of {type(self).__name__} is torch's, which cannot continue the state that was loaded")
            self._carried.left = f"the iterator of {type(self).__name__} is torch's, which has no state: derive the class from torchdata's StatefulDataLoader"
            if persistent:
                self._iterator = iterator  # torch's workers stay with it
        return iterator

    def _get_iterator(self) -> Iterator[_Batch]:  # which subclasses of torch's class replace
        self._refuse_torchs_position()
        self.num_workers = number_of_workers(self.num_workers)  # which may have been set since
        refuse_greenlets(self.num_workers)
        self._heed_kept_generator(5)  # which the dataset may have got since
        if self._share is None and self._kind is not Kind.ITERABLE:
            warn_of_equal_ranks(self, self._index_sampler)
        if not self.num_workers:
            if self._share is not None:
                raise invalid('DataLoader: share: "broadcast" needs num_workers > 0, and it was set to 0: the other members would wait for this one')
            if self._retry_after:
                raise invalid("DataLoader: retry_after needs num_workers > 0, and it was set to 0: this thread would wait for a batch that hangs")
        running = self._running()
        if self.persistent_workers and isinstance(running, WorkerIterator):
            inside = running._inside == threading.get_ident()  # in a signal handler
            if not inside:
                running.supersede()
            if inside or not running.over:  # or another thread is in the sampler: the workers still make batches of the other epoch
                raise RuntimeError("the next epoch of persistent_workers cannot begin within next(): begin it once next() has returned")
        position = self._loaded, self._carried.left, self._carried.latest, self._running, self._repeat
        pool, generation = self._pool, 0 if self._pool is None else self._pool.generation
        try:
            return self._new_iterator()
        except BaseException:
            self._loaded, self._carried.left, self._carried.latest, self._running, self._repeat = position
            if self._pool is not None and (self._pool is not pool or pool.generation != generation):  # its workers may have been told of the epoch
                self._pool.stop()
            raise

    def _refuse_torchs_position(self) -> None:
        """Raises Error if a checkpoint of SpeechBrain asks torch's iterators to begin in the middle of an epoch: it has put functions of its own into them."""
        batches = getattr(self, "_speechbrain_recovery_skip_to", None)
        if batches:
            raise Error(
                Code.FAILED_PRECONDITION,
                f"{type(self).__name__} is to continue behind batch {batches} of a checkpoint of SpeechBrain, which only torch's iterators do: here the epoch "
                "would begin anew. Use torch's class, or set _speechbrain_recovery_skip_to to None to begin anew. Later checkpoints continue here if they have "
                "state_dict(): give Checkpointer.add_recoverable a custom_save_hook(loader, path) and a custom_load_hook(loader, path, *others), under "
                'the name that the loader has there ("dataloader-TRAIN" if Brain.fit makes it)',
            )

    def _new_iterator(self) -> Iterator[_Batch]:
        if self._share is None:
            self._check_gpu()
        goes_back = self._loaded is not None
        epoch = self._begin()
        if goes_back:  # otherwise, streams could end behind the load of the dataset's state, and change the dataset
            for before in self._streams:
                stream = before()
                if stream is not None:
                    stream.supersede()
        iterator = (WorkerIterator if self.num_workers else SingleIterator)(self, epoch)
        try:
            if self._share is not None:  # now: workers that are forked after the check cannot use CUDA, and here nothing else has to initialise it before
                self._check_gpu()
            self._running = weakref.ref(iterator)
            self._carried.left = self.__dict__["_kept_starts"] = None  # no call: behind it, no signal handler can raise here
        except BaseException:  # a traceback may keep the iterator
            iterator.close()
            raise
        return iterator

    def _check_gpu(self) -> None:
        fault = torch_fault(self._ordinal) if self._ordinal >= 0 else None
        if fault is not None:
            raise unusable(f'DataLoader: device="cuda:{self._ordinal}"', fault, "Without device, batches stay in the host's memory")

    def _begin(self) -> Epoch:
        state, lanes = self._loaded, None
        order = self._order()
        order.restored = self._samplers_restored and self._drawn is not None and not self._drawn.batches and not self._drawn.all
        if state is not None and self._lane_options is not None:  # its workers stand elsewhere
            self._kept_starts = None
            if self._pool is not None:
                self._pool.stop()
        self._carried.left = "iter() begins an epoch: take the state once it has returned"  # for signal handlers: generators are drawn, and workers told
        self._starts(6)  # which may raise: now, and not when an epoch has begun
        if state is not None and state["running"]:
            epoch = order.resume(state, lazy=not self.num_workers)  # if it raises, the state stays
        else:
            # Without workers each epoch draws a seed, as torch's, also while persistent workers wait for a later one.
            repeat, base_seed = (self._repeat, self._base_seed) if self.num_workers else (0, 0)
            if state is not None:
                order.restore(state["start"])
                if self.persistent_workers and self.num_workers and "repeat" in state:
                    repeat, base_seed = state["repeat"], state["base_seed"]
                lanes = self._lanes_of(state)
            before, restored = (self._drawn, None) if state is None else (None, state["start"])
            epoch = order.begin(repeat, base_seed, lanes, not self.num_workers, before, restored)
        number = self._epochs + 1
        if self._share is not None:  # members that continue from a state meet those that go on
            number = epoch.start["number"] = number if state is None else state["start"].get("number", number)
        if self.num_workers and self._lane_options is None:
            with contextlib.suppress(Error):  # a sampler's state is not known
                self._carried.left = epoch.state(epoch.first)
        self._loaded = None
        self._drawn, self._samplers_restored = epoch.drawn, order.restored
        if self.num_workers:
            self._repeat, self._base_seed = epoch.repeat + 1, epoch.base_seed
        self._epochs = number
        self._carried.latest = object()
        return epoch

    def _starts(self, stacklevel: int) -> Optional[List[bytes]]:
        """Returns in which state each persistent worker begins the next epoch. None: others do, or an epoch does not depend on the one before. `stacklevel`:
        of warnings.
        """
        running = self._running()
        if running is not None and running.over:
            running.close()  # a signal handler may have interrupted that
        if self._pool is not None and self._pool.stopped:
            self._pool = None
        if self._pool is not None and self._lane_options is not None:
            self._kept_starts = self._pool.starts(self.timeout)
        elif self._kept_starts is not None and not all(map(is_known, self._kept_starts)):
            if self._kind is Kind.ITERABLE and has_state(self.dataset) and b"" in self._kept_starts:
                raise Error(
                    Code.FAILED_PRECONDITION,
                    "an iter() that failed, or was interrupted, has ended the persistent workers. They had not finished the epoch before, and nothing tells where "
                    "their datasets stood: load_state_dict(state_dict()) continues that epoch, and another loader begins at the dataset's first state",
                )
            why = next(filter(None, map(why_unknown, self._kept_starts)), "")
            self._kept_starts = None  # an error has cost the starts
            if why:
                warnings.warn(
                    "an iter() that failed, or was interrupted, has ended the persistent workers, and nothing tells where their datasets stood: its state_dict "
                    f"raised {why}. Others begin at the dataset's first state: what it counts from epoch to epoch begins anew",
                    stacklevel=stacklevel,
                )
        if self._pool is None and self._kept_starts is None:
            self._repeat = 0  # new workers need a seed of their own
        return self._kept_starts

    def _lanes_of(self, state: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Returns what a state between two epochs has of lanes that this loader's workers continue."""
        lanes: Optional[Dict[str, Any]] = state.get("lanes")
        if lanes is None or (self.num_workers and (self._lane_options is None or not self.persistent_workers)):
            return None
        if lanes["workers"] == self.num_workers and (self.num_workers or self._kind is Kind.ITERABLE):
            return lanes
        if self._kind is Kind.ITERABLE and has_state(self.dataset):
            warnings.warn(
                f"the state is from between two epochs of a loader with num_workers={lanes['workers']}, and this one has {self.num_workers}: the dataset begins "
                "the epoch without the state that each worker's copy had. Use the same number, or load a state into the dataset",
                stacklevel=6,
            )
        return None

    def _start_workers(self, base_seed: int) -> WorkerPool:
        """Returns the workers of an epoch: persistent ones that were started before, or new ones."""
        if self._pool is not None and not self._pool.stopped:
            return self._pool
        shared = self._share is not None
        grows = not self._max_batch_bytes and not shared and self._encoded is None  # the daemon sees what is in slots only
        chosen = self._chooses and self._lane_options is None
        job = Job(self._recipe, self.worker_init_fn, self._workers, base_seed, grows, self._lane_options, this_process(), shared, chosen)
        pool = WorkerPool(self.multiprocessing_context, job)
        if self.persistent_workers:
            self._pool = pool
        return pool

    def __getstate__(self) -> Dict[str, Any]:
        """A copy has no workers and no iterator, but a loaded position."""
        return {**self.__dict__, "_carried": copy.copy(self._carried), "_pool": None, "_iterator": None, "_kept_starts": None, "_running": _nothing, "_streams": ()}

    # ---- Position ----

    def state_dict(self) -> Dict[str, Any]:
        """Returns the position, for a checkpoint: after the last batch yielded, also of an epoch that was left before its
        end, or between two epochs. Datasets with `__getitem__` are not part of it.
        """
        if not self._warned_of_state:
            self._warn_of_state()
        if self._loaded is not None:
            return self._loaded
        if isinstance(self._carried.left, str):
            raise Error(Code.FAILED_PRECONDITION, self._carried.left)
        if self._carried.left is not None:
            return self._carried.left
        running = self._running()
        if running is not None and (running._inside or not running.over):  # within `close` the workers are still the iterator's
            return running.state_dict()
        # For signal handlers, which would take the workers' answers.
        try:
            self._carried.left = "state_dict() waits for the workers: take the state once it has returned"
            starts, lanes = self._starts(3), None
        finally:
            self._carried.left = None  # no call
        if starts is not None:
            lanes = saved_between(starts)
        elif not self.num_workers and self._kind is Kind.ITERABLE:
            lanes = self._stream_between()
        state = self._order().state_between(self._repeat, self._base_seed, lanes)
        if self._share is not None:
            state["start"]["number"] = self._epochs + 1
        return state

    def _warn_of_state(self) -> None:
        self._warned_of_state = True
        if self._kind is not Kind.ITERABLE and has_state(self.dataset):
            warnings.warn(
                "DataLoader.state_dict: the dataset has a state_dict of its own, which is not part of this state: workers load its samples in no fixed order, "
                "each with its own copy. If its samples depend on what was loaded before, save and load its state beside this one, with num_workers=0",
                stacklevel=3,
            )
        foreign = getattr(self.dataset, "state_dict", None), getattr(self.dataset, "load_state_dict", None)
        if self._kind is Kind.ITERABLE and all(map(callable, foreign)) and not has_state(self.dataset):
            warnings.warn(
                f"DataLoader.state_dict: state_dict and load_state_dict of {type(self.dataset).__name__} take other parameters, so that its state is not part of "
                "this one: the dataset is read again from its start, unless its iterator has a state: that gives other samples if it counts epochs. Give it "
                "methods as those of torchdata's StatefulDataLoader, or save its state by the loader of its library",
                stacklevel=3,
            )
        if self._order().loses_inner_state:
            warnings.warn(
                "DataLoader.state_dict: the sampler inside the batch_sampler has a state_dict of its own, which is not part of this state: an epoch of a batch "
                "sampler of this class may end with the sampler in the middle. Give the batch_sampler state_dict and load_state_dict",
                stacklevel=3,
            )

    def _stream_between(self) -> Optional[Dict[str, Any]]:
        """Returns what a state has of an iterable dataset in this process that is to begin an epoch. None: it has no state."""
        of_dataset = state_of(self.dataset) if self._epochs else told(self.dataset)
        if of_dataset is None:
            return None
        if self._carried.stream_left:
            return saved_unknown_stream()
        if self._carried.begun_again is not None and same_state(self._carried.begun_again[1], of_dataset):
            return saved_stream_between(*self._carried.begun_again[0])
        return saved_stream_between(of_dataset)

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Makes the next iteration continue where `state_dict` was called. The batches before are skipped without
        loading them, except those of an iterable dataset without a state of its own, which is read again from its start.
        The arguments and the dataset must be the same.
        """
        checked = check_state(state, self._order())
        check_saved(checked.get("lanes"))
        self._loaded = checked


def _nothing() -> None:
    """Stands for a dead reference to an iterator."""
