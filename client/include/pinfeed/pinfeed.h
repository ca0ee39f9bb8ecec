/* SPDX-License-Identifier: Apache-2.0
 *
 * pinfeed's C interface: batches from the daemon `pinfeedd` as tensors in this process.
 * Long because: one header is the whole of it.
 *
 *  1. Objects are opaque and made and destroyed by this library. Every pointer's lifetime is stated where it
 * is returned.
 *  2. Every fallible function returns a pf_result; on failure pf_last_error() says what was tried, on what,
 * and what to do.
 *  3. Structs that may grow start with `size`: set it with the matching _init function. Fields beyond the
 * caller's size are not touched.
 *  4. A pf_feed is used by one thread at a time. A pf_batch may be released from any thread, also after its
 * feed was closed.
 *  5. After fork() the child must not use objects of its parent (it gets PF_FAILED_PRECONDITION); the parent
 * is not disturbed.
 *  6. No function writes to stdout or stderr unless pf_set_log was never called: then warnings go to stderr.
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

/* Version of this header, (major << 16) | (minor << 8) | patch. Libraries of one major version are
 * compatible. */
#define PF_VERSION ((0 << 16) | (1 << 8) | 0)
/* Version of the library that is loaded. */
PF_API uint32_t pf_version(void);

/* Values equal gRPC's status codes. */
typedef enum pf_result {
  PF_OK = 0,
  PF_CANCELLED = 1,
  PF_UNKNOWN = 2,
  PF_INVALID_ARGUMENT =
      3, /* the spec, a cursor or an argument is wrong; the message lists every fault by field */
  PF_DEADLINE_EXCEEDED = 4, /* nothing came within the time given; the call may be repeated */
  PF_NOT_FOUND = 5,         /* dataset or file */
  PF_ALREADY_EXISTS = 6,
  PF_PERMISSION_DENIED = 7,  /* outside the daemon's roots, or this user is not on its list */
  PF_RESOURCE_EXHAUSTED = 8, /* does not fit the daemon's memory; the message has the numbers */
  PF_FAILED_PRECONDITION = 9,
  PF_ABORTED = 10,
  PF_OUT_OF_RANGE = 11, /* the feed's last epoch is over */
  PF_UNIMPLEMENTED = 12,
  PF_INTERNAL = 13,
  PF_UNAVAILABLE = 14, /* no daemon can be reached */
  PF_DATA_LOSS = 15,   /* a bad sample under on_bad_sample = fail, or a file that changed */
  PF_UNAUTHENTICATED = 16,
  PF_RESULT_FORCE_32BIT = 0x7fffffff
} pf_result;

/* "INVALID_ARGUMENT" and so on. Static lifetime. */
PF_API const char* pf_result_name(pf_result result);
/* Message of the last failure on this thread, "" if there was none. Success leaves it alone. Valid until the
 * next failure on this thread. */
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
/* Gets the library's warnings (reconnects, fall-backs, a trainer that holds every slot). `message` is valid
 * during the call. Called on the thread that is inside a pf_ function. NULL silences. Process-wide; set it
 * before the first pf_open. */
typedef void (*pf_log_function)(pf_log_level level, const char* message, void* user);
PF_API void pf_set_log(pf_log_function function, void* user);

/* ---- opening ---- */

typedef struct pf_open_options {
  size_t size;
  const char*
      address; /* path of the daemon's socket; NULL: $PINFEED_ADDRESS, else /run/pinfeed/pinfeed.sock */
  const char* spec_json;   /* pinfeed.v1.FeedSpec as protobuf JSON, e.g.
                              {"dataset":{"path":"/data/train"},"batch_size":256,"order":"SHUFFLE"} */
  const char* cursor_json; /* what pf_cursor gave, to resume; NULL: from the start */
  const char* client_name; /* shown by `pinfeed status`; NULL: the process name */
  int64_t open_timeout_ms; /* for the daemon to answer, or, where it stops, the next one; default 10000 */
  int64_t reconnect_timeout_ms; /* how long pf_next may try to get a vanished daemon back; default 300000, -1:
                                   for ever, 0: never */
  int32_t device; /* the CUDA ordinal, in this process, of the GPU that is to get the batches; default
                     -1: host memory. With the spec's backend AUTO a daemon that cannot serve the GPU
                     gives host memory, with a warning; pf_feed_info says which it is */
  uint32_t reserved;
} pf_open_options;
PF_API void pf_open_options_init(pf_open_options* options, size_t size);

typedef struct pf_feed pf_feed;
/* Opens a feed. On success *feed is to be closed with pf_close. Blocks up to open_timeout_ms; for a device
 * also as long as the driver takes to start, to make this process's context and to map memory. A daemon that
 * is stopping is waited for, and the one after it; that nobody is there, or this user is refused, is told at
 * once. The members of a group that is to go on where it was open with its cursors, each with its own or all
 * with one. Fails with
 * PF_INVALID_ARGUMENT, PF_NOT_FOUND, PF_PERMISSION_DENIED, PF_RESOURCE_EXHAUSTED, PF_FAILED_PRECONDITION (a
 * cursor of another dataset, a group with another spec, a required backend that cannot be had),
 * PF_UNAVAILABLE or PF_DEADLINE_EXCEEDED (no daemon, none in time, no GPU). */
PF_API pf_result pf_open(const pf_open_options* options, pf_feed** feed);
/* Ends the session. Batches that are still held stay valid until their release; the last of them unmaps the
 * memory. When none is held, pf_close unmaps it, and waits (at most 2 s) until the daemon has taken it back;
 * else, of a group's feed, as long until the daemon has let the group go on without it.
 * Whoever unmaps memory of a device waits before that until the streams have got to every release that was
 * put on them, at most 10 s (not at all where the process's context is broken), and then as long as the
 * driver needs (with cuda-ipc until the GPU is idle). Where that fails, the memory stays until the process
 * ends, with a warning. NULL is allowed. */
PF_API void pf_close(pf_feed* feed);

typedef struct pf_feed_info {
  size_t size;
  uint32_t batch_size;
  uint32_t tensor_count;
  uint32_t slot_count; /* batches that can be held or prefetched at once */
  uint32_t reconnects; /* times the daemon was lost and found again */
  uint64_t dataset_samples;
  uint64_t batches_per_epoch; /* of this rank */
  uint64_t slot_bytes;        /* arena bytes of one slot */
  const char* fingerprint;    /* of the dataset; lives as long as the feed */
  const char* backend;        /* "host", "cuda-ipc" or "vmm-fd"; lives as long as the feed */
  const char* const* classes; /* class_count names of labels 0, 1, ...: the raw bytes of the folder
                                 names, which need not be UTF-8; live as long as the feed */
  uint64_t class_count;       /* 0: the dataset names no classes */
  int32_t device;             /* as asked for; -1: host memory */
  uint32_t output_count;      /* tensors that pf_batch_write makes */
} pf_feed_info;
PF_API void pf_feed_info_init(pf_feed_info* info, size_t size);
PF_API pf_result pf_get_feed_info(const pf_feed* feed, pf_feed_info* info);

/* ---- batches ---- */

typedef struct pf_batch pf_batch;
/* The next batch, in order. Blocks until it is there, at most timeout_ms (-1: as long as the daemon lives or
 * can be waited for; 0: only looks). PF_OUT_OF_RANGE after the last epoch. When the daemon vanishes: what is
 * published is still given, then the call reconnects and goes on behind the last batch given (it may then
 * outlast timeout_ms by up to open_timeout_ms, on a device also by what pf_close waits for streams).
 * PF_UNAVAILABLE when that did not succeed within reconnect_timeout_ms; the next call tries as long again.
 * Errors that trying again cannot cure are given again until a seek succeeds. Each batch is to be released
 * once, with pf_batch_release. With on_bad_sample = skip a batch may have 0 samples. It is returned like any
 * other, so that all ranks get the same number of batches. The first such batch of a feed logs a warning. */
PF_API pf_result pf_next(pf_feed* feed, int64_t timeout_ms, pf_batch** batch);

typedef struct pf_batch_info {
  size_t size;
  uint64_t epoch;         /* 0-based */
  uint64_t index;         /* 0-based within the epoch, of this rank */
  uint32_t samples;       /* 0..batch_size: dimension 0 of every tensor */
  uint32_t skipped;       /* samples left out as bad */
  uint32_t last_of_epoch; /* 1: the next batch belongs to the next epoch */
  uint32_t held;          /* unreleased batches of the feed's current session, including this one */
  void*
      data; /* start of the batch's slot; a tensor's distance from it is the same in every batch of a feed */
} pf_batch_info;
PF_API void pf_batch_info_init(pf_batch_info* info, size_t size);
PF_API pf_result pf_get_batch_info(const pf_batch* batch, pf_batch_info* info);
/* pf_next and pf_get_batch_info in one call, which saves a call. On failure *info holds
 * nothing. */
PF_API pf_result pf_next_info(pf_feed* feed, int64_t timeout_ms, pf_batch** batch, pf_batch_info* info);

#define PF_MAX_DIMS 16
typedef struct pf_tensor {
  size_t size;
  const char* name; /* lives as long as the batch */
  pf_dtype dtype;
  uint32_t dims;                /* 1 + dimensions of a sample */
  int64_t shape[PF_MAX_DIMS];   /* shape[0] == samples */
  int64_t strides[PF_MAX_DIMS]; /* in elements; C order, dense */
  void* data;                   /* aligned to 512 bytes; valid until the batch is released */
  uint64_t bytes;
  int32_t device;    /* -1: host memory; else the caller's CUDA ordinal */
  uint32_t writable; /* 0: shared with other sessions, writing is a fault */
} pf_tensor;
PF_API void pf_tensor_init(pf_tensor* tensor, size_t size);
/* Precondition of success: index < tensor_count, else PF_INVALID_ARGUMENT. */
PF_API pf_result pf_get_tensor(const pf_batch* batch, uint32_t index, pf_tensor* tensor);

/* Statistics for `pinfeed status`: counts a batch that the caller copied and released at once, because it
 * held so many batches (pf_batch_info.held) that the feed would run out of free slots. */
PF_API pf_result pf_count_copied(pf_feed* feed);

/* One more owner: the batch goes back when as many pf_batch_release as (1 + pf_batch_retain) calls were made.
 * Any thread. */
PF_API void pf_batch_retain(pf_batch* batch);
/* Gives the slot back to the daemon; the tensors' memory must not be touched afterwards (on a device: no work
 * that is queued may touch it, see pf_batch_release_on). NULL is allowed. Any thread. Never blocks, but for
 * the last batch of a session that ended before it, by pf_close, a seek or the loss of the daemon: that one
 * unmaps the memory, see pf_close. */
PF_API void pf_batch_release(pf_batch* batch);

/* ---- tensors of one's own ---- */

/* What pf_batch_write makes: `shape[0]` is batch_size, `data` NULL, `bytes` what to allocate. On a device
 * these are the tensors that the transforms ask for, while those of pf_get_tensor are what lies in the slot
 * (images as uint8, before their pointwise transforms); on the host both are the same. Names live as long as
 * the feed. Precondition of success: index < output_count. */
PF_API pf_result pf_get_output(const pf_feed* feed, uint32_t index, pf_tensor* tensor);
/* Writes every output of the batch into memory of the caller and gives the batch back, in the order of
 * `stream`: nothing waits (but see pf_batch_release). outputs[i] points to at least the bytes of
 * pf_get_output (of which samples / batch_size are written), on the feed's device, aligned to its elements.
 * `stream` is a CUstream or cudaStream_t of that device's primary context, NULL its default stream. On the
 * host: `stream` is ignored and all is done at the return. On success the batch is gone: do not release it.
 * On an error it is still the caller's, and outputs are unspecified. PF_FAILED_PRECONDITION when it was
 * retained. */
PF_API pf_result pf_batch_write(pf_batch* batch, void* const* outputs, uint32_t output_count, void* stream);
/* Gives a batch on a device back when `stream` gets there, so that work put there before may still read it.
 * On success the batch is gone; on an error, and PF_FAILED_PRECONDITION when it was retained, it is still the
 * caller's. Plain pf_batch_release is for work that has finished. On the host: the same as it. Waits as
 * rarely, but then for `stream` itself. */
PF_API pf_result pf_batch_release_on(pf_batch* batch, void* stream);

/* ---- position ---- */

/* The position behind the last batch that pf_next gave, as JSON (pinfeed.v1.Cursor), NUL-terminated. *needed
 * gets the bytes including the NUL; PF_OUT_OF_RANGE when capacity is smaller (buffer is then untouched; NULL
 * with capacity 0 asks for the size). */
PF_API pf_result pf_cursor(const pf_feed* feed, char* buffer, size_t capacity, size_t* needed);
/* Goes on at the cursor with the next pf_next. Costs nothing when that is where the feed stands already; else
 * it ends the session and opens another: it drops what is prefetched, keeps held batches valid, and blocks
 * and fails as pf_close and pf_open do. PF_INVALID_ARGUMENT and PF_FAILED_PRECONDITION: this feed has no such
 * position, or its broadcast group is further already. After a failure the feed stands where it was: no batch
 * is lost, none comes twice. What was prefetched there is kept in a group with other members, else made anew.
 * A daemon of a version that cannot keep it leaves a member of a broadcast group whose others have gone on no
 * way back, and pf_next says so. */
PF_API pf_result pf_seek(pf_feed* feed, const char* cursor_json);
/* Likewise, at the start of an epoch. */
PF_API pf_result pf_seek_epoch(pf_feed* feed, uint64_t epoch);

/* ---- the daemon ---- */

/* pinfeed.v1.GetStatusResponse, ListDatasetsResponse, and the answer of Admin's `method` ("Drain", "Evict",
 * "Reload", "SetLogLevel"; for operators) to `request`, as JSON. `address` as in pf_open_options, or the
 * HOST:PORT of an admin endpoint (pf_set_tls). Each waits at most 10 s (PF_DEADLINE_EXCEEDED,
 * PF_UNAVAILABLE).
 */
PF_API pf_result pf_status_json(const char* address, char** json);
PF_API pf_result pf_datasets_json(const char* address, char** json);
PF_API pf_result pf_admin_json(const char* address, const char* method, const char* request, char** json);
/* PEM files for calls to HOST:PORT, read at each: the CA of the daemon's certificate, one's own and its key
 * (NULL: $PINFEED_TLS_CA, _CERT, _KEY), and the daemon's name in its own (NULL: $PINFEED_TLS_NAME, else
 * HOST). */
PF_API pf_result pf_set_tls(const char* ca, const char* certificate, const char* key, const char* name);
/* Frees what the functions above returned. NULL is allowed. */
PF_API void pf_free(char* json);

/* Records what the daemon does with this user's feeds (root, the daemon's user: all) for as long as
 * `request_json`, a pinfeed.v1.TraceRequest, says. `function` is called on this thread: some ten times a
 * second with NULL meanwhile, then once for each pinfeed.v1.TraceResponse as JSON, valid during the call.
 * Another value than 0 ends the one or the other, and is no failure. Connecting takes at most 10 s. Forks in
 * other threads wait some seconds for it. */
typedef int (*pf_trace_function)(const char* json, void* user);
PF_API pf_result pf_trace(const char* address, const char* request_json, pf_trace_function function,
                          void* user);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PINFEED_PINFEED_H_ */
