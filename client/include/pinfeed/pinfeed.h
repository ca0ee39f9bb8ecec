/* SPDX-License-Identifier: Apache-2.0
 *
 * pinfeed's C interface: batches from the daemon `pinfeedd` as tensors in this process.
 * Long because: this one header is the whole C interface.
 *
 *  1. Objects are opaque; the library creates and destroys them. Each function states the lifetime of the
 *     pointers it returns.
 *  2. Every function that can fail returns a pf_result. After a failure, pf_last_error() says what was tried,
 *     on what object, and what to do.
 *  3. Structs that may grow begin with `size`: set it with the matching _init function. Fields beyond the
 *     caller's size are neither read nor written.
 *  4. Use a pf_feed from one thread at a time. A pf_batch may be released from any thread, also after its
 *     feed was closed. Give pf_next a timeout if another thread has to end it: a thread that is cancelled
 *     (pthread_cancel) within the library ends the process.
 *  5. After fork() the child must not use its parent's objects: calls fail with PF_FAILED_PRECONDITION. The
 *     parent is unaffected.
 *  6. The library never writes to stdout. It writes to stderr only warnings, and only if pf_set_log was not
 *     called.
 */
#ifndef PINFEED_PINFEED_H_
#define PINFEED_PINFEED_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PF_API __attribute__((visibility("default")))
#else
#define PF_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header: (major << 16) | (minor << 8) | patch. Libraries with the same major version are
 * compatible. */
#define PF_VERSION ((0 << 16) | (1 << 8) | 0)
/* Version of the loaded library, in the same form. Any thread. */
PF_API uint32_t pf_version(void);

/* Values equal gRPC's status codes. */
typedef enum pf_result {
  PF_OK = 0,
  PF_CANCELLED = 1,
  PF_UNKNOWN = 2,
  PF_INVALID_ARGUMENT =
      3, /* the spec, a cursor or an argument is wrong; the message names each faulty field */
  PF_DEADLINE_EXCEEDED = 4, /* the time ran out; the call may be repeated */
  PF_NOT_FOUND = 5,         /* no such dataset or file */
  PF_ALREADY_EXISTS = 6,
  PF_PERMISSION_DENIED = 7,  /* a path outside the daemon's roots, or a socket that the user may not open */
  PF_RESOURCE_EXHAUSTED = 8, /* memory, sessions or descriptors run out; the message has the numbers */
  PF_FAILED_PRECONDITION = 9,
  PF_ABORTED = 10,
  PF_OUT_OF_RANGE = 11, /* the feed has ended, or a buffer is too small */
  PF_UNIMPLEMENTED = 12,
  PF_INTERNAL = 13,
  PF_UNAVAILABLE = 14, /* no daemon, one that does not serve this user, no GPU, or the feed is gone */
  PF_DATA_LOSS = 15,   /* a bad sample with on_bad_sample = fail, or a file that changed */
  PF_UNAUTHENTICATED = 16,
  PF_RESULT_FORCE_32BIT = 0x7fffffff
} pf_result;

/* The name of a result, such as "INVALID_ARGUMENT". Static lifetime. */
PF_API const char* pf_result_name(pf_result result);
/* The message of the last failed call on this thread; "" if none failed. A successful call does not change
 * it. Valid until the next failure on this thread. */
PF_API const char* pf_last_error(void);

typedef enum pf_dtype {
  PF_BOOL = 1,
  PF_UINT8 = 2,
  PF_INT8 = 3,
  PF_UINT16 = 4,
  PF_INT16 = 5,
  PF_UINT32 = 6,
  PF_INT32 = 7,
  PF_UINT64 = 8,
  PF_INT64 = 9,
  PF_FLOAT16 = 10,
  PF_BFLOAT16 = 11,
  PF_FLOAT32 = 12,
  PF_FLOAT64 = 13,
  PF_COMPLEX64 = 14,
  PF_COMPLEX128 = 15,
  PF_DTYPE_FORCE_32BIT = 0x7fffffff
} pf_dtype;

typedef enum pf_log_level {
  PF_LOG_INFO = 1,
  PF_LOG_WARNING = 2,
  PF_LOG_LEVEL_FORCE_32BIT = 0x7fffffff
} pf_log_level;
/* Receives the library's warnings: reconnects, fallbacks, a trainer that holds every slot. Called on the
 * thread that called the pf_ function. `message` is valid during the call. NULL silences the warnings. The
 * setting is process-wide; set it before the first pf_open. */
typedef void (*pf_log_function)(pf_log_level level, const char* message, void* user);
PF_API void pf_set_log(pf_log_function function, void* user);

/* ---- Opening ---- */

typedef struct pf_open_options {
  size_t size;
  const char*
      address; /* path of the daemon's socket; NULL: $PINFEED_ADDRESS, else /run/pinfeed/pinfeed.sock */
  const char* spec_json;   /* pinfeed.v1.FeedSpec as protobuf JSON, e.g.
                              {"dataset":{"path":"/data/train"},"batch_size":256,"order":"SHUFFLE",
                               "transforms":[{"random_resized_crop":{"size":[224]}}]} */
  const char* cursor_json; /* from pf_cursor, to resume; NULL: from the start */
  const char* client_name; /* shown by `pinfeed status`; NULL: the process name */
  int64_t open_timeout_ms; /* limit of pf_open: for the daemon's answer, or its successor's if it is stopping;
                              default 10000 */
  int64_t reconnect_timeout_ms; /* how long pf_next tries to reconnect to a vanished daemon; default 300000;
                                   -1: no limit, 0: not at all */
  int32_t device; /* the CUDA ordinal, in this process, of the GPU that gets the batches; default -1: host
                     memory. If the spec's backend is AUTO and the daemon cannot serve the GPU, batches come
                     in host memory, with a warning; pf_feed_info says which. The host memory of a feed
                     without a group is page-locked: release a batch only once no copy from it runs */
  uint32_t reserved;
} pf_open_options;
PF_API void pf_open_options_init(pf_open_options* options, size_t size);

typedef struct pf_feed pf_feed;
/* Opens a feed. On success the caller owns *feed and must close it with pf_close.
 *
 * Blocks for at most open_timeout_ms; for a device, also while the driver starts, creates this process's
 * context and maps memory. If the daemon is stopping, pf_open waits for it to stop and for the next one to
 * start. Fails immediately if no daemon listens or this user may not connect.
 *
 * To resume a broadcast group, every member passes a cursor: its own, or one that all members share.
 *
 * Errors: PF_INVALID_ARGUMENT, PF_NOT_FOUND, PF_PERMISSION_DENIED, PF_RESOURCE_EXHAUSTED,
 * PF_FAILED_PRECONDITION (the cursor is for another dataset, the group has another spec, or a required
 * backend is unavailable), PF_UNAVAILABLE (no daemon or no GPU), PF_DEADLINE_EXCEEDED. */
PF_API pf_result pf_open(const pf_open_options* options, pf_feed** feed);
/* Ends the session and frees the feed. NULL is allowed.
 *
 * Batches that are still held stay valid until released; the release of the last one unmaps the memory. If
 * none is held, pf_close unmaps it and waits at most 2 s until the daemon has reclaimed it. If some are
 * held and the feed belongs to a group, pf_close waits equally long until the daemon has removed this
 * member from the group.
 *
 * Before a device's memory is unmapped, the caller waits until the streams have executed every queued
 * release: at most 10 s, and not at all if the context is broken. Unmapping then takes as long as the
 * driver needs; with cuda-ipc, until the GPU is idle. If it fails, the memory stays mapped until the
 * process ends, and a warning is logged. */
PF_API void pf_close(pf_feed* feed);

typedef struct pf_feed_info {
  size_t size;
  uint32_t batch_size;
  uint32_t tensor_count;
  uint32_t slot_count; /* batches that can be held and prefetched together */
  uint32_t reconnects; /* how often the feed reconnected */
  uint64_t dataset_samples;
  uint64_t batches_per_epoch;  /* for this rank */
  uint64_t slot_bytes;         /* arena bytes of one slot */
  const char* fingerprint;     /* of the dataset; valid as long as the feed */
  const char* backend;         /* "host", "cuda-ipc" or "vmm-fd"; valid as long as the feed */
  const char* const* classes;  /* class_count names of labels 0, 1, ...: the raw bytes of folder names,
                                  which may not be UTF-8; valid as long as the feed */
  uint64_t class_count;        /* 0: the dataset names no classes */
  int32_t device;              /* as in pf_open_options; -1: host memory */
  uint32_t output_count;       /* tensors that pf_batch_write produces */
  const char* const* left_out; /* left_out_count messages: each says which column of the dataset is in no
                                  tensor, and why (missing values, ...); valid as long as the feed */
  uint64_t left_out_count;     /* 0: nothing, or the spec names its fields */
  const char* decode;  /* what decodes the images: "cpu", "gpu" or, with the share of the GPU per mille,
                          "auto:787"; valid as long as the feed */
  const char* decoder; /* of the GPU, such as "nvJPEG on NVIDIA H100"; "" with "cpu". Pictures of another kind
                          differ within a tolerance; valid as long as the feed */
  uint64_t
      resident_bytes; /* memory of the GPU that holds all samples, shared by the user's feeds that need
                         the same; the slots then hold lists of samples. 0: the samples are not resident */
} pf_feed_info;
PF_API void pf_feed_info_init(pf_feed_info* info, size_t size);
PF_API pf_result pf_get_feed_info(const pf_feed* feed, pf_feed_info* info);

/* ---- Batches ---- */

typedef struct pf_batch pf_batch;
#define PF_ONLY_LOOK (-2) /* a timeout of pf_next and pf_next_info */
/* Gets the next batch, in order. The caller owns *batch and must release it once, with pf_batch_release.
 * If the GPU decodes its images (pf_feed_info.decode), it is ready once they are decoded; at most 4 such
 * batches can be taken and neither written nor released. One whose image cannot be decoded fails the feed
 * (PF_DATA_LOSS), unless on_bad_sample is ZERO.
 *
 * Blocks until the batch is ready, at most timeout_ms. -1: no limit while the daemon lives or can be
 * reconnected; 0: does not wait. Returns PF_OUT_OF_RANGE after the last epoch and PF_DEADLINE_EXCEEDED
 * when the time is over. A trainer of resident samples that is 64 batches ahead of its GPU waits here for it.
 * PF_ONLY_LOOK: returns the batch if it is ready, a failure that is known, else PF_DEADLINE_EXCEEDED, and
 * leaves everything else to a call with another timeout. Does not block, except to page-lock a slot that
 * comes for the first time: for callers with a lock that other threads may want.
 *
 * If the daemon vanishes, published batches are still returned. Then the call reconnects and continues
 * after the last batch returned. It may then exceed timeout_ms by up to open_timeout_ms, and on a device
 * by the wait described at pf_close. Returns PF_UNAVAILABLE if reconnecting failed for
 * reconnect_timeout_ms; the next call tries for as long again. An error that a retry cannot resolve is
 * returned again until a seek succeeds.
 *
 * With on_bad_sample = skip a batch may have 0 samples. It is returned like any other, so that all ranks
 * get the same number of batches. The first such batch of a feed logs a warning. */
PF_API pf_result pf_next(pf_feed* feed, int64_t timeout_ms, pf_batch** batch);

typedef struct pf_batch_info {
  size_t size;
  uint64_t epoch;         /* 0-based */
  uint64_t index;         /* 0-based within the epoch, for this rank */
  uint32_t samples;       /* 0..batch_size: dimension 0 of every tensor that is not packed */
  uint32_t skipped;       /* bad samples that were left out */
  uint32_t last_of_epoch; /* 1: last batch of its epoch for this rank */
  uint32_t held;          /* unreleased batches of the feed's current session, including this one */
  void* data; /* start of the batch's slot; a tensor has the same offset from it in every batch of a feed */
} pf_batch_info;
PF_API void pf_batch_info_init(pf_batch_info* info, size_t size);
PF_API pf_result pf_get_batch_info(const pf_batch* batch, pf_batch_info* info);
/* pf_next and pf_get_batch_info in one call, for callers where each call is expensive. On failure *info is
 * unspecified. */
PF_API pf_result pf_next_info(pf_feed* feed, int64_t timeout_ms, pf_batch** batch, pf_batch_info* info);

#define PF_MAX_DIMS 16
typedef struct pf_tensor {
  size_t size;
  const char* name; /* valid as long as the batch */
  pf_dtype dtype;
  uint32_t dims;                /* 1 + the dimensions of a sample */
  int64_t shape[PF_MAX_DIMS];   /* shape[0]: samples; of a packed tensor, the rows that it has room for */
  int64_t strides[PF_MAX_DIMS]; /* in elements; C order, dense */
  void* data;                   /* aligned to 512 bytes; valid until the batch is released */
  uint64_t bytes;
  int32_t device;    /* -1: host memory; else the caller's CUDA ordinal */
  uint32_t writable; /* 0: shared with other sessions and mapped read-only */
  /* 0, or 1 + the index of the tensor of extents, int64 [samples, 2]: each sample's first row and its number
   * of rows. The tensor is then packed: `data` holds the rows of all samples, in any order and with gaps. */
  uint32_t extents;
  /* 0, or 1 + the index of the tensor of lengths, int64 [samples]. The tensor is then padded: every sample
   * has equally many rows, and those from its length on are zero. */
  uint32_t lengths;
} pf_tensor;
PF_API void pf_tensor_init(pf_tensor* tensor, size_t size);
/* Describes a tensor. PF_INVALID_ARGUMENT unless index < tensor_count. PF_FAILED_PRECONDITION for a packed
 * tensor if `tensor->size` does not cover `extents`. */
PF_API pf_result pf_get_tensor(const pf_batch* batch, uint32_t index, pf_tensor* tensor);

/* Computes where the rows of each sample lie in the packed output `index` (of pf_get_output): sample i has
 * the rows offsets[i] to offsets[i + 1] - 1, and offsets[samples] is the number of all rows. `offsets` is
 * host memory for samples + 1 values.
 *
 * On a device, reads the extents back: waits for a copy on a stream of the library's own (some 20 us), not
 * for the caller's streams. PF_INVALID_ARGUMENT: the output is not packed. PF_INTERNAL: an extent lies
 * outside of the tensor; the daemon is broken. */
PF_API pf_result pf_get_row_offsets(const pf_batch* batch, uint32_t index, int64_t* offsets);

/* Counts a batch that the caller copied and released at once, because it held so many batches
 * (pf_batch_info.held) that the feed would run out of slots. Shown by `pinfeed status`. */
PF_API pf_result pf_count_copied(pf_feed* feed);

/* Adds an owner: the slot is returned after 1 + (number of pf_batch_retain calls) calls of
 * pf_batch_release. Any thread. */
PF_API void pf_batch_retain(pf_batch* batch);
/* Returns the slot to the daemon. The memory of the batch's tensors must not be accessed afterwards. On a
 * device, no queued work may access it either; see pf_batch_release_on. NULL is allowed. Any thread.
 *
 * Never blocks, with one exception: if the session has ended (pf_close, a seek, or the loss of the
 * daemon), releasing its last batch unmaps the memory, as described at pf_close. */
PF_API void pf_batch_release(pf_batch* batch);
/* Gives the batch that was taken last back unused, as if pf_next had not returned it, from a member of a
 * queue that is about to close its feed: another member gets the batch. The position (pf_cursor) stays behind
 * it.
 *
 * On success the batch is consumed. On failure the caller still owns it. PF_FAILED_PRECONDITION if another
 * was taken since, or the batch was retained. Called by the thread that calls pf_next. */
PF_API pf_result pf_batch_give_back(pf_batch* batch);

/* ---- Outputs in the caller's memory ---- */

/* Describes an output that pf_batch_write produces. `shape[0]` is batch_size, `data` is NULL, `bytes` is
 * the size to allocate. PF_INVALID_ARGUMENT unless index < output_count. Names live as long as the feed.
 *
 * On a device, outputs are the tensors that the spec's transforms produce. The tensors of pf_get_tensor
 * are then the raw slot contents: images are uint8, before their pointwise transforms. On the host,
 * outputs and tensors are the same, but for packed ones: as an output, rows lie in the order of the samples
 * without gaps. */
PF_API pf_result pf_get_output(const pf_feed* feed, uint32_t index, pf_tensor* tensor);
/* Writes every output of the batch into the caller's memory and returns the slot, in the order of
 * `stream`. Does not wait for the stream (but see pf_batch_release).
 *
 * outputs[i] points to memory on the feed's device, aligned to the element size and of the size that
 * pf_get_output gives. Of a packed output, memory for offsets[samples] rows suffices after
 * pf_get_row_offsets. Of the others only the batch's samples are written. `stream` is a CUstream or
 * cudaStream_t of the device's primary context; NULL is its default stream. On the host `stream` is ignored
 * and everything is done when the call returns.
 *
 * On success the batch is consumed: do not release it. On failure the caller still owns it and the outputs
 * are unspecified. PF_FAILED_PRECONDITION if the batch was retained. */
PF_API pf_result pf_batch_write(pf_batch* batch, void* const* outputs, uint32_t output_count, void* stream);
/* Returns the slot once `stream` has executed the work queued so far, which may still read the batch.
 * pf_batch_release, in contrast, requires that such work has finished. On the host `stream` is ignored.
 *
 * On success the batch is consumed. On failure the caller still owns it. PF_FAILED_PRECONDITION if the
 * batch was retained. Blocks in the same case as pf_batch_release, and then until `stream` itself is done. */
PF_API pf_result pf_batch_release_on(pf_batch* batch, void* stream);

/* ---- Position ---- */

/* Gets the position after the last batch that pf_next returned, as NUL-terminated JSON
 * (pinfeed.v1.Cursor). *needed is set to its size in bytes, including the NUL. PF_OUT_OF_RANGE if capacity
 * is smaller; the buffer is then unchanged. Pass NULL with capacity 0 to ask for the size. */
PF_API pf_result pf_cursor(const pf_feed* feed, char* buffer, size_t capacity, size_t* needed);
/* Moves the feed to the cursor; the next pf_next continues there. Does nothing if the feed is at that
 * position already. Otherwise it ends the session and opens another: prefetched batches are dropped, held
 * batches stay valid, and the call blocks and fails like pf_close and pf_open.
 *
 * PF_INVALID_ARGUMENT or PF_FAILED_PRECONDITION: the feed has no such position, or its broadcast group is
 * past it.
 *
 * If the daemon cannot be reached, the call succeeds, and pf_next reconnects at the new position, unless
 * reconnect_timeout_ms is 0. In a group with other members, a daemon that does not answer is
 * PF_DEADLINE_EXCEEDED.
 *
 * After a failure the feed keeps its position: no batch is lost or repeated. In a group with other members
 * the prefetched batches are kept; otherwise they are loaded again. If the daemon cannot keep the position, a
 * member of a broadcast group that has advanced cannot return to it; pf_next then reports that. */
PF_API pf_result pf_seek(pf_feed* feed, const char* cursor_json);
/* Like pf_seek, to the start of an epoch. */
PF_API pf_result pf_seek_epoch(pf_feed* feed, uint64_t epoch);

/* ---- Producers: processes that fill the batches of a feed ---- */

/* Invites processes to fill batches of a feed whose spec has `dataset.produced`. If that has `lanes` = n,
 * they fill batches i with i mod n == lane; otherwise `lane` is 0. Pass the *size bytes at *invitation (a
 * pinfeed.v1.ProducerInvitation) to them, and free them with pf_free.
 *
 * Keep the invitation secret: whichever process of the user has it can attach. It becomes invalid when the
 * feed closes, seeks or loses the daemon; producers then need new ones. May be called from any thread, also
 * during pf_next, but not during pf_close. PF_UNAVAILABLE while there is no daemon; PF_INVALID_ARGUMENT for a
 * lane that no batch has; PF_FAILED_PRECONDITION if the feed is closed or its dataset is not produced. */
PF_API pf_result pf_invite_producer(pf_feed* feed, uint32_t lane, char** invitation, size_t* size);

/* Asks the daemon at `address` for a place at a batcher: `request_json` is a pinfeed.v1.JoinBatcherRequest,
 * and *json becomes a pinfeed.v1.BatcherInvitation (docs/protocol.md, section 14), to be freed with pf_free.
 * Keep it secret. Takes at most 10 s. PF_NOT_FOUND: the user has no batcher of this name. */
PF_API pf_result pf_join_batcher_json(const char* address, const char* request_json, char** json);

typedef struct pf_producer pf_producer;
/* Attaches this process to the feed of an invitation and maps the feed's memory, which forked children do not
 * inherit. On success the caller owns *producer and must close it. PF_UNAVAILABLE: the feed or the daemon is
 * gone; PF_UNAUTHENTICATED: the invitation is void; PF_RESOURCE_EXHAUSTED: the feed has 256 producers, or the
 * daemon too few descriptors left. Takes at most 10 s. */
PF_API pf_result pf_producer_attach(const void* invitation, size_t size, pf_producer** producer);
/* Unmaps the memory. Tasks that are not done are given to other producers once this process has ended. NULL
 * is allowed. */
PF_API void pf_producer_close(pf_producer* producer);

typedef struct pf_task {
  size_t size;
  uint64_t task;
  uint64_t epoch;            /* 0-based */
  uint64_t batch_index;      /* 0-based within the epoch */
  uint32_t samples;          /* to fill: 1..batch_size */
  uint32_t tensor_count;     /* of pf_producer_tensor */
  const int64_t* sample_ids; /* `samples` indexes into the dataset; valid until the task is done */
} pf_task;
PF_API void pf_task_init(pf_task* task, size_t size);
/* Gets the next batch to fill. Blocks at most timeout_ms (-1: no limit), then PF_DEADLINE_EXCEEDED.
 * PF_OUT_OF_RANGE: the feed was closed, or the daemon ended; close the producer. One thread at a time. */
PF_API pf_result pf_producer_next(pf_producer* producer, int64_t timeout_ms, pf_task* task);
/* Describes where a tensor of the task's samples goes. `shape[0]` is the number of samples, `writable` is 1.
 * Write to `data` until the task is done, and never after that. */
PF_API pf_result pf_producer_tensor(const pf_producer* producer, const pf_task* task, uint32_t index,
                                    pf_tensor* tensor);
/* Asks for memory of its own for a task's batch that does not fit into its slot; at most once a task. On
 * success *fd is a memory file of `bytes`, which the caller owns, may pass on and maps. It is charged to the
 * user while any process has it open or mapped. The slot then says, in the user's own way, where the batch
 * is. PF_RESOURCE_EXHAUSTED: beyond what the daemon, or its user, may have; the message has the numbers.
 * PF_FAILED_PRECONDITION: the feed is shared. Takes at most 10 s. From the thread of pf_producer_next. */
PF_API pf_result pf_producer_memory(pf_producer* producer, const pf_task* task, uint64_t bytes, int* fd);
/* Reports the end of a task. `error` NULL: all its samples are written. Otherwise the feed fails with the
 * text `error`, cut to 208 bytes. Any thread. PF_FAILED_PRECONDITION if the end was reported already. */
PF_API pf_result pf_producer_done(pf_producer* producer, const pf_task* task, const char* error);
/* Reports the end of a task whose batch does not exist, since the data end before it: it is dealt to nobody
 * else, and its slot is not used again. The trainer is not told: it has to know how many batches there are.
 * `pinfeed status` shows where the data end. Otherwise like pf_producer_done. */
PF_API pf_result pf_producer_end_of_data(pf_producer* producer, const pf_task* task);

/* Makes the calling process exit, with code 1 and without cleanup, as soon as the process behind `pidfd`
 * ends. On success the library owns the descriptor. Producers use it so that none survives its trainer. A
 * forked child does not inherit this. PF_INVALID_ARGUMENT: not a descriptor of pidfd_open. */
PF_API pf_result pf_end_with_process(int pidfd);

/* ---- Copies to a GPU, without a daemon ---- */

typedef struct pf_copier pf_copier;
typedef struct pf_copier_options {
  size_t size;
  int32_t device;      /* the CUDA ordinal, in this process; default 0 */
  uint32_t threads;    /* that copy to the ring, with the caller; default 0: one for each CPU, at most 16 */
  uint64_t ring_bytes; /* of page-locked memory, at most; default 0: 64 MiB */
} pf_copier_options;
PF_API void pf_copier_options_init(pf_copier_options* options, size_t size);
/* Prepares copies to a GPU. On success the caller owns *copier and must close it. Threads start and memory is
 * page-locked when they are first needed: 32 MiB, then the whole ring. PF_UNAVAILABLE: no CUDA, or no driver;
 * PF_INVALID_ARGUMENT: no such GPU. */
PF_API pf_result pf_copier_open(const pf_copier_options* options, pf_copier** copier);
/* Waits until the GPU has read the ring, and frees it. No other call may be under way. NULL is allowed. */
PF_API void pf_copier_close(pf_copier* copier);

typedef enum pf_stream_state {
  PF_STREAM_IDLE = 0,
  PF_STREAM_BUSY = 1,
  PF_STREAM_CAPTURING = 2,
  PF_STREAM_STATE_FORCE_32BIT = 0x7fffffff
} pf_stream_state;
/* Tells what a stream of the copier's GPU is doing. Never waits. Any thread. */
PF_API pf_result pf_copier_stream_state(pf_copier* copier, void* stream, pf_stream_state* state);

typedef struct pf_host_copy { /* never grows */
  const void* source;         /* host memory */
  uint64_t bytes;
  void* target;  /* memory of the GPU */
  uint64_t span; /* >= bytes: how much is written; zeros follow the source's bytes */
} pf_host_copy;
/* Queues `count` copies on `stream` (as in pf_batch_write). Several threads copy pageable sources to the ring
 * while the GPU copies from it. Copies whose targets follow each other without a gap travel together. The GPU
 * reads sources of 64 KiB or more that are page-locked itself.
 *
 * When the call returns, the sources have been read and may change, but their bytes may still be on the way.
 * It therefore waits for page-locked sources, and while the ring is full: until `stream` has done what was
 * queued on it before. With `non_blocking` it does not wait for page-locked sources. *reading (NULL is
 * allowed) is then the number of copies whose sources must stay as they are until the stream has done them.
 *
 * After a failure nothing reads the sources, and the targets are unspecified. PF_FAILED_PRECONDITION: the
 * stream is being captured. Any thread. */
PF_API pf_result pf_copy_to_device(pf_copier* copier, const pf_host_copy* copies, uint64_t count,
                                   void* stream, int non_blocking, uint64_t* reading);

/* ---- Calls to the daemon ---- */

/* Calls to the daemon, with the response as JSON in *json, to be freed with pf_free. pf_status_json
 * returns pinfeed.v1.GetStatusResponse and pf_datasets_json ListDatasetsResponse. pf_admin_json, for
 * operators, calls `method` of pinfeed.v1.Admin ("Drain", "Evict", "Reload", "SetLogLevel" or
 * "DropCache") with the JSON `request`.
 *
 * `address` is as in pf_open_options, or HOST:PORT of an admin port (see pf_set_tls). Each call takes at
 * most 10 s; then it fails with PF_DEADLINE_EXCEEDED or PF_UNAVAILABLE. */
PF_API pf_result pf_status_json(const char* address, char** json);
PF_API pf_result pf_datasets_json(const char* address, char** json);
PF_API pf_result pf_admin_json(const char* address, const char* method, const char* request, char** json);
/* Sets the PEM files for calls to HOST:PORT: the CA of the daemon's certificate, the caller's certificate
 * and its key. NULL: $PINFEED_TLS_CA, $PINFEED_TLS_CERT, $PINFEED_TLS_KEY. `name` is the name in the
 * daemon's certificate; NULL: $PINFEED_TLS_NAME, or else HOST. The files are read at each call.
 * Process-wide. */
PF_API pf_result pf_set_tls(const char* ca, const char* certificate, const char* key, const char* name);
/* Frees a string of pf_status_json, pf_datasets_json, pf_admin_json, pf_join_batcher_json or
 * pf_invite_producer. NULL is allowed.
 */
PF_API void pf_free(char* string);

/* Records what the daemon does for this user's feeds; for root and the daemon's user, for all feeds.
 * `request_json` is a pinfeed.v1.TraceRequest, which gives the duration.
 *
 * `function` is called on this thread. During the recording it gets NULL about ten times a second, so that it
 * can stop the recording. Afterwards it gets each pinfeed.v1.TraceResponse as JSON, which is valid during the
 * call. A non-zero return value stops early; that is not a failure.
 *
 * Connecting takes at most 10 s. A fork in another thread may wait some seconds for this call; `function`
 * must not fork. */
typedef int (*pf_trace_function)(const char* json, void* user);
PF_API pf_result pf_trace(const char* address, const char* request_json, pf_trace_function function,
                          void* user);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PINFEED_PINFEED_H_ */
