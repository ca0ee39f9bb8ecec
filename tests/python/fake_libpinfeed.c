// SPDX-License-Identifier: Apache-2.0
// pinfeed.h without a daemon, so that the Python package's own logic can be tested case by case, also those
// that are rare with a real one. In: FAKE_* environment variables. Out: batches of two tensors, "image"
// (uint8, 2x8192: not small in batches of 4) and "label" (int64), whose values tell epoch, batch and sample.
// With FAKE_DEVICE they claim to be on that GPU; outputs are the tensors, but for the type that
// FAKE_LABEL_OUTPUT makes of "label".
// Long because: it has every function of pinfeed.h.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pinfeed/pinfeed.h"

enum {
  kMaxSlots = 64,
  kMaxBatch = 64,
  kImageBytes = 2 * 8192,
  kLabelOffset = kMaxBatch * kImageBytes,
  kSlotBytes = kLabelOffset + 512
};

struct pf_batch {
  atomic_int owners;
  int slot;
  uint64_t epoch, index;
  uint32_t samples, last;
  struct pf_feed* feed;
};

struct pf_feed {
  struct pf_batch batches[kMaxSlots];
  uint8_t* memory;
  uint64_t epoch, index;  // of the next batch
  uint64_t position;      // samples consumed of cursor_epoch
  uint64_t cursor_epoch;
  int slots, batch_size, samples, epochs, fails_at;
  int seeks, copied;
};

static _Thread_local char g_error[1000];
static char g_spec[20000];
static atomic_int g_released, g_closed, g_blocked, g_interrupts;
static char g_done[1000];
static pf_log_function g_log;
static void* g_user;

static int Setting(const char* name, int fallback) {
  const char* text = getenv(name);
  return text != NULL && *text != '\0' ? atoi(text) : fallback;
}
static pf_result Fail(pf_result result, const char* message) {
  snprintf(g_error, sizeof(g_error), "%s", message);
  return result;
}
static int BatchesPerEpoch(const pf_feed* feed) {
  return (feed->samples + feed->batch_size - 1) / feed->batch_size;
}

static pf_result GoTo(pf_feed* feed, const char* cursor_json) {
  unsigned long long epoch = 0;
  unsigned long long position = 0;
  const char* const at = strstr(cursor_json, "\"epoch\"");
  if (at == NULL || sscanf(at, "\"epoch\": \"%llu\", \"position\": \"%llu\"", &epoch, &position) != 2) {
    return Fail(PF_INVALID_ARGUMENT, "cursor: not one");
  }
  feed->cursor_epoch = feed->epoch = epoch;
  feed->position = position;
  feed->index = (position + (uint64_t)feed->batch_size - 1) / (uint64_t)feed->batch_size;
  if (feed->index >= (uint64_t)BatchesPerEpoch(feed)) {
    ++feed->epoch;
    feed->index = 0;
  }
  return PF_OK;
}

// For the tests.
PF_API const char* fake_spec(void) {
  return g_spec;
}
PF_API void fake_forget_spec(void) {
  g_spec[0] = '\0';
}
PF_API int fake_released(void) {
  return atomic_load(&g_released);
}
PF_API int fake_closed(void) {
  return atomic_load(&g_closed);
}
PF_API int fake_seeks(const pf_feed* feed) {
  return feed->seeks;
}
PF_API void fake_unblock(void) {
  atomic_store(&g_blocked, 0);
}
PF_API void fake_interrupt(void) {
  atomic_fetch_add(&g_interrupts, 1);
}
PF_API int fake_copied(const pf_feed* feed) {
  return feed->copied;
}
PF_API void fake_log(int level, const char* message) {
  if (g_log != NULL) g_log((pf_log_level)level, message, g_user);
}

uint32_t pf_version(void) {
  return (uint32_t)Setting("FAKE_VERSION", PF_VERSION);
}
const char* pf_result_name(pf_result result) {
  return result == PF_OK ? "OK" : "FAILED";
}
const char* pf_last_error(void) {
  return g_error;
}
void pf_set_log(pf_log_function function, void* user) {
  g_log = function;
  g_user = user;
}

#define INIT(name)                              \
  void name##_init(name* object, size_t size) { \
    memset(object, 0, size);                    \
    object->size = size;                        \
  }
INIT(pf_open_options)
INIT(pf_feed_info)
INIT(pf_batch_info)
INIT(pf_tensor)
INIT(pf_task)

pf_result pf_open(const pf_open_options* options, pf_feed** out) {
  snprintf(g_spec, sizeof(g_spec), "%s", options->spec_json);
  const int error = Setting("FAKE_OPEN_ERROR", 0);
  if (error != 0) return Fail((pf_result)error, "dataset: open: it was\nrefused");
  pf_feed* feed = calloc(1, sizeof(*feed));
  feed->slots = Setting("FAKE_SLOTS", 4);
  feed->batch_size = Setting("FAKE_BATCH_SIZE", 4);
  feed->samples = Setting("FAKE_SAMPLES", 10);
  feed->epochs = Setting("FAKE_EPOCHS", 0);
  feed->fails_at = Setting("FAKE_FAILS_AT", -1);
  feed->epoch = feed->cursor_epoch = (uint64_t)Setting("FAKE_START", 0);
  atomic_store(&g_blocked, Setting("FAKE_BLOCKED", 0));
  feed->memory = aligned_alloc(512, (size_t)feed->slots * kSlotBytes);
  *out = feed;
  return options->cursor_json == NULL ? PF_OK : GoTo(feed, options->cursor_json);
}
void pf_close(pf_feed* feed) {
  atomic_fetch_add(&g_closed,
                   1);  // the memory stays for batches that are held; a test process does not live long
  (void)feed;
}
pf_result pf_get_feed_info(const pf_feed* feed, pf_feed_info* info) {
  info->batch_size = (uint32_t)feed->batch_size;
  info->tensor_count = 2;
  info->slot_count = (uint32_t)feed->slots;
  info->dataset_samples = (uint64_t)feed->samples;
  info->batches_per_epoch = (uint64_t)BatchesPerEpoch(feed);
  info->slot_bytes = kSlotBytes;
  info->fingerprint = "f00d";
  info->backend = "host";
  static const char* const kClasses[] = {"cat", "dog"};
  info->classes = kClasses;
  info->class_count = (uint64_t)Setting("FAKE_CLASSES", 2);
  info->device = Setting("FAKE_DEVICE", -1);
  info->output_count = 2;
  return PF_OK;
}

pf_result pf_next(pf_feed* feed, int64_t timeout_ms, pf_batch** out) {
  if (timeout_ms == PF_ONLY_LOOK) timeout_ms = 0;
  if (feed->epochs > 0 && feed->epoch >= (uint64_t)feed->epochs)
    return Fail(PF_OUT_OF_RANGE, "the feed's last epoch has ended");
  const int interrupts = atomic_load(&g_interrupts);
  for (int64_t waited = 0; atomic_load(&g_blocked); ++waited) {
    if (waited == timeout_ms || atomic_load(&g_interrupts) != interrupts)
      return Fail(PF_DEADLINE_EXCEEDED, "no batch was ready in time");
    usleep(1000);
  }
  if (feed->fails_at == (int)feed->index) return Fail(PF_DATA_LOSS, "decode 'cat.jpg': it ends early");
  int slot = 0;
  while (slot < feed->slots && atomic_load(&feed->batches[slot].owners) > 0) ++slot;
  if (slot == feed->slots) {
    usleep((useconds_t)timeout_ms * 1000);
    return Fail(PF_DEADLINE_EXCEEDED, "no batch was ready in time");
  }
  pf_batch* batch = &feed->batches[slot];
  batch->slot = slot;
  batch->feed = feed;
  batch->epoch = feed->epoch;
  batch->index = feed->index;
  const int first = (int)feed->index * feed->batch_size;
  const int left = feed->samples - first;
  batch->samples = (uint32_t)(left < feed->batch_size ? left : feed->batch_size);
  const int last = feed->index + 1 == (uint64_t)BatchesPerEpoch(feed);
  batch->last = (uint32_t)(last && !Setting("FAKE_SILENT_END", 0));
  for (uint32_t i = 0; i < batch->samples; ++i) {
    uint8_t* const base = feed->memory + slot * kSlotBytes;
    memset(base + i * kImageBytes, (int)(batch->epoch * 100 + (uint64_t)first + i), kImageBytes);
    const int64_t label = (int64_t)batch->epoch * 100 + first + (int64_t)i;
    memcpy(base + kLabelOffset + i * sizeof(label), &label, sizeof(label));
  }
  feed->cursor_epoch = feed->epoch;
  feed->position = (uint64_t)first + batch->samples;
  if (last) {
    ++feed->epoch;
    feed->index = 0;
  } else {
    ++feed->index;
  }
  atomic_store(&batch->owners, 1);
  *out = batch;
  return PF_OK;
}
pf_result pf_get_batch_info(const pf_batch* batch, pf_batch_info* info) {
  info->epoch = batch->epoch;
  info->index = batch->index;
  info->samples = batch->samples;
  info->skipped = 0;
  info->last_of_epoch = batch->last;
  info->held = 0;
  for (int slot = 0; slot < batch->feed->slots; ++slot)
    info->held += atomic_load(&batch->feed->batches[slot].owners) > 0;
  info->data = batch->feed->memory + batch->slot * kSlotBytes;
  return PF_OK;
}
pf_result pf_next_info(pf_feed* feed, int64_t timeout_ms, pf_batch** batch, pf_batch_info* info) {
  const pf_result result = pf_next(feed, timeout_ms, batch);
  return result != PF_OK ? result : pf_get_batch_info(*batch, info);
}
pf_result pf_count_copied(pf_feed* feed) {
  ++feed->copied;
  return PF_OK;
}
pf_result pf_get_tensor(const pf_batch* batch, uint32_t index, pf_tensor* tensor) {
  uint8_t* const base = batch->feed->memory + batch->slot * kSlotBytes;
  tensor->shape[0] = batch->samples;
  tensor->writable = !Setting("FAKE_READ_ONLY", 0);
  tensor->device = Setting("FAKE_DEVICE", -1);
  if (index == 0) {
    tensor->name = "image";
    tensor->dtype = (pf_dtype)Setting("FAKE_DTYPE", PF_UINT8);
    const int narrow = tensor->dtype == PF_BFLOAT16 || tensor->dtype == PF_UINT16;
    tensor->dims = 3;
    tensor->shape[1] = 2;
    tensor->shape[2] = kImageBytes / 2;
    tensor->data = base;
    // Two-byte elements: the same samples as half as long rows would be; only shapes and types matter then.
    tensor->bytes = batch->samples * (uint64_t)(narrow ? 2 : 1) * kImageBytes;
  } else {
    tensor->name = "label";
    tensor->dtype = PF_INT64;
    tensor->dims = 1;
    tensor->data = base + kLabelOffset;
    tensor->bytes = batch->samples * 8ULL;
  }
  return PF_OK;
}
pf_result pf_get_output(const pf_feed* feed, uint32_t index, pf_tensor* tensor) {
  const pf_batch any = {.samples = (uint32_t)feed->batch_size, .feed = (pf_feed*)feed};
  const pf_result result = pf_get_tensor(&any, index, tensor);
  tensor->data = NULL;
  if (index == 1) tensor->dtype = (pf_dtype)Setting("FAKE_LABEL_OUTPUT", PF_INT64);
  return result;
}
pf_result pf_get_row_offsets(const pf_batch* batch, uint32_t index, int64_t* offsets) {
  (void)batch;
  (void)index;
  (void)offsets;
  return PF_INVALID_ARGUMENT;  // nothing is packed
}
// There is no memory of a GPU to write to: the batch is given back, as after a write.
pf_result pf_batch_write(pf_batch* batch, void* const* outputs, uint32_t output_count, void* stream) {
  (void)outputs;
  (void)output_count;
  return pf_batch_release_on(batch, stream);
}
void pf_batch_retain(pf_batch* batch) {
  atomic_fetch_add(&batch->owners, 1);
}
void pf_batch_release(pf_batch* batch) {
  if (batch == NULL) return;
  if (atomic_fetch_sub(&batch->owners, 1) <= 0) abort();  // released twice
  atomic_fetch_add(&g_released, 1);
}
pf_result pf_batch_give_back(pf_batch* batch) {
  pf_batch_release(batch);
  return PF_OK;
}
pf_result pf_batch_release_on(pf_batch* batch, void* stream) {
  (void)stream;
  pf_batch_release(batch);
  return PF_OK;
}

pf_result pf_cursor(const pf_feed* feed, char* buffer, size_t capacity, size_t* needed) {
  char text[1000];
  // Longer than the first guess of a caller, so that the second call is tested too.
  const int length = snprintf(
      text, sizeof(text),
      "{\"version\":2,\"fingerprint\":\"%0600d\",\"seed\":\"0\",\"epoch\":\"%llu\",\"position\":\"%llu\"}", 7,
      (unsigned long long)feed->cursor_epoch, (unsigned long long)feed->position);
  *needed = (size_t)length + 1;
  if (capacity < *needed) return Fail(PF_OUT_OF_RANGE, "the buffer is too small");
  memcpy(buffer, text, *needed);
  return PF_OK;
}
pf_result pf_seek(pf_feed* feed, const char* cursor_json) {
  ++feed->seeks;
  return GoTo(feed, cursor_json);
}
pf_result pf_seek_epoch(pf_feed* feed, uint64_t epoch) {
  if (feed->epoch == epoch && feed->index == 0) return PF_OK;
  ++feed->seeks;
  feed->cursor_epoch = feed->epoch = epoch;
  feed->position = feed->index = 0;
  return PF_OK;
}

// A producer gets FAKE_TASKS tasks of two samples of four bytes. What it reports is kept for fake_done.
struct pf_producer {
  uint8_t memory[8];
  int64_t sample_ids[2];
  uint64_t tasks;
};
PF_API const char* fake_done(void) {
  return g_done;
}
pf_result pf_invite_producer(pf_feed* feed, uint32_t lane, char** invitation, size_t* size) {
  (void)feed;
  (void)lane;
  *size = 3;
  *invitation = memcpy(malloc(*size), "a\0b", *size);
  return PF_OK;
}
pf_result pf_producer_attach(const void* invitation, size_t size, pf_producer** producer) {
  if (size != 3 || memcmp(invitation, "a\0b", size) != 0) return Fail(PF_UNAUTHENTICATED, "it is void");
  *producer = calloc(1, sizeof(**producer));
  atomic_store(&g_blocked, Setting("FAKE_BLOCKED", 0));
  return PF_OK;
}
void pf_producer_close(pf_producer* producer) {
  if (producer != NULL) atomic_fetch_add(&g_closed, 1);
  free(producer);
}
pf_result pf_producer_next(pf_producer* producer, int64_t timeout_ms, pf_task* task) {
  for (int64_t waited = 0; atomic_load(&g_blocked); ++waited) {
    if (waited == timeout_ms) return Fail(PF_DEADLINE_EXCEEDED, "no task in time");
    usleep(1000);
  }
  if (producer->tasks == (uint64_t)Setting("FAKE_TASKS", 1)) return Fail(PF_OUT_OF_RANGE, "it was closed");
  *task =
      (pf_task){.size = task->size, .task = ++producer->tasks, .epoch = 5, .batch_index = 6, .samples = 2};
  task->tensor_count = (uint32_t)Setting("FAKE_TENSORS", 1);
  task->sample_ids = producer->sample_ids;
  return PF_OK;
}
pf_result pf_producer_tensor(const pf_producer* producer, const pf_task* task, uint32_t index,
                             pf_tensor* tensor) {
  (void)task, (void)index;
  tensor->data = (void*)producer->memory;
  tensor->bytes = sizeof(producer->memory);
  return PF_OK;
}
pf_result pf_producer_memory(pf_producer* producer, const pf_task* task, uint64_t bytes, int* fd) {
  (void)producer, (void)task, (void)bytes, (void)fd;
  return Fail(PF_RESOURCE_EXHAUSTED, "no memory");
}
pf_result pf_producer_done(pf_producer* producer, const pf_task* task, const char* error) {
  snprintf(g_done, sizeof(g_done), "task %d, byte %d, %s", (int)task->task, producer->memory[7],
           error == NULL ? "no error" : error);
  return Setting("FAKE_DONE_ENDS", 0) ? Fail(PF_OUT_OF_RANGE, "it was closed") : PF_OK;
}
pf_result pf_producer_end_of_data(pf_producer* producer, const pf_task* task) {
  return pf_producer_done(producer, task, "end of data");
}
// There is no GPU: only the names are needed.
void pf_copier_options_init(pf_copier_options* options, size_t size) {
  memset(options, 0, size);
}
pf_result pf_copier_open(const pf_copier_options* options, pf_copier** copier) {
  return Fail(PF_UNAVAILABLE, options == NULL || copier == NULL ? "NULL" : "no GPU");
}
void pf_copier_close(pf_copier* copier) {
  (void)copier;
}
pf_result pf_copier_stream_state(pf_copier* copier, void* stream, pf_stream_state* state) {
  return Fail(PF_UNAVAILABLE, copier == NULL || stream == NULL || state == NULL ? "NULL" : "no GPU");
}
pf_result pf_copy_to_device(pf_copier* copier, const pf_host_copy* copies, uint64_t count, void* stream,
                            int non_blocking, uint64_t* reading) {
  (void)copier, (void)copies, (void)count, (void)stream, (void)non_blocking, (void)reading;
  return Fail(PF_UNAVAILABLE, "no GPU");
}
pf_result pf_end_with_process(int pidfd) {
  snprintf(g_done, sizeof(g_done), "%d", pidfd);
  return Setting("FAKE_DONE_ENDS", 0) ? Fail(PF_INVALID_ARGUMENT, "it is none") : PF_OK;
}

pf_result pf_status_json(const char* address, char** json) {
  (void)address;
  *json = strdup("{\"state\":\"ready\"}");
  return PF_OK;
}
pf_result pf_join_batcher_json(const char* address, const char* request_json, char** json) {
  (void)address;
  (void)request_json;
  *json = NULL;
  return PF_NOT_FOUND;
}
pf_result pf_datasets_json(const char* address, char** json) {
  (void)address;
  *json = strdup("{\"datasets\":[{\"name\":\"pets\"}]}");
  return PF_OK;
}
void pf_free(char* json) {
  free(json);
}
