// SPDX-License-Identifier: Apache-2.0
// The functions of pinfeed.h that take a feed. They check the arguments; Feed does the work.
#include <errno.h>  // program_invocation_short_name

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/api/c_api.h"
#include "client/src/api/c_tensor.h"
#include "client/src/base/client_log.h"
#include "client/src/base/fork_guard.h"
#include "client/src/decode/decode_engine.h"
#include "client/src/feed/feed.h"
#include "client/src/gpu/device_slots.h"
#include "client/src/link/address.h"
#include "common/base/quote.h"
#include "common/spec/names.h"

struct pf_feed {
  explicit pf_feed(std::unique_ptr<pinfeed::Feed> opened) : feed(std::move(opened)) {
    for (const std::string& name : feed->constants().classes) classes.push_back(name.c_str());
    for (const std::string& column : feed->constants().left_out) left_out.push_back(column.c_str());
    for (const pinfeed::OfferedOutput& output : feed->offer().outputs) outputs.push_back(output.spec.name);
  }
  std::unique_ptr<pinfeed::Feed> feed;
  std::vector<const char*> classes;
  std::vector<const char*> left_out;
  std::vector<std::string> outputs;  // names, the same in all sessions
  std::atomic<bool> in_next = false;
};

namespace pinfeed {
namespace {

constexpr size_t kMaxNameBytes = 128;  // OpenFeedRequest.client_name

Status CheckFeed(const pf_feed* feed) {
  if (feed == nullptr) return InvalidArgument("feed is NULL");
  if (!feed->feed->in_creator_process()) {
    return FailedPrecondition(
        "this feed belongs to the parent process; a forked child must open its own (with Python's "
        "multiprocessing, use 'spawn')");
  }
  return OkStatus();
}

// Returns the caller's options. Fields that the caller's version of the struct lacks have their defaults.
Result<pf_open_options> ReadOptions(const pf_open_options* given) {
  pf_open_options options;
  pf_open_options_init(&options, sizeof(options));
  RETURN_IF_ERROR(ReadStruct(given, &options, "options", "pf_open_options_init"));
  if (options.spec_json == nullptr)
    return InvalidArgument("options.spec_json is NULL; give a pinfeed.v1.FeedSpec as JSON");
  if (options.open_timeout_ms <= 0)
    return InvalidArgument("options.open_timeout_ms is " + std::to_string(options.open_timeout_ms) +
                           "; it must be positive");
  if (options.reconnect_timeout_ms < -1) {
    return InvalidArgument("options.reconnect_timeout_ms is " + std::to_string(options.reconnect_timeout_ms) +
                           "; -1 means no limit, 0 not to reconnect");
  }
  return options;
}

// The daemon refuses other names than short, printable ones. A name that the library chose itself must not
// fail.
Result<std::string> ClientName(const char* given) {
  if (given != nullptr && !IsUtf8(given))
    return InvalidArgument("options.client_name " + QuotePath(given) + " is not UTF-8");
  if (given != nullptr) return std::string(given);
  std::string name = EscapeUnprintable(program_invocation_short_name).substr(0, kMaxNameBytes);
  while (!IsUtf8(name)) name.pop_back();  // the last character was cut
  return name;
}

Result<FeedOptions> MakeFeedOptions(const pf_open_options* given) {
  ASSIGN_OR_RETURN(const pf_open_options options, ReadOptions(given));
  FeedOptions result;
  SessionOptions& session = result.session;
  ASSIGN_OR_RETURN(session.address, ResolveLocalAddress(options.address, "open a feed"));
  session.request.spec_json = options.spec_json;
  if (options.cursor_json != nullptr) {
    ASSIGN_OR_RETURN(session.request.cursor, CursorFromJson(options.cursor_json));
  }
  ASSIGN_OR_RETURN(session.request.client_name, ClientName(options.client_name));
  session.open_timeout = Bounded(options.open_timeout_ms);
  if (options.device < -1)
    return InvalidArgument("options.device is " + std::to_string(options.device) + "; -1 means the host");
  session.device = options.device;
  if (options.device >= 0) {
    // A child must not inherit the loader's locks from a thread that it lacks.
    ASSIGN_OR_RETURN(const NoForkScope no_fork,
                     NoForkScope::Enter(std::chrono::steady_clock::now() + session.open_timeout));
    Result<std::string> uuid = GpuUuid(options.device);
    if (!uuid.ok()) {
      return Status(uuid.status().code(), "options.device is " + std::to_string(options.device) +
                                              ": this process cannot use that GPU: " +
                                              uuid.status().message() + "; -1 is the host");
    }
    session.request.gpu_uuid = std::move(uuid).value();
    // Whether the GPU is required is for the daemon to decide: with backend AUTO, batches may come in host
    // memory.
    Result<std::shared_ptr<const void>> gpu = HoldGpu(options.device);
    if (gpu.ok())
      session.gpu = *std::move(gpu);
    else
      session.gpu_error = gpu.status();
    session.open_decoder = [device = options.device] { return OpenDecodeEngine(device); };
  }
  if (options.reconnect_timeout_ms >= 0) result.reconnect_timeout = Bounded(options.reconnect_timeout_ms);
  return result;
}

Batch* Unwrap(pf_batch* batch) {
  return reinterpret_cast<Batch*>(batch);
}
pf_batch* Wrap(Batch* batch) {
  return reinterpret_cast<pf_batch*>(batch);
}

Result<const Batch*> CheckBatch(const pf_batch* handle) {
  if (handle == nullptr) return InvalidArgument("batch is NULL");
  const auto* batch = reinterpret_cast<const Batch*>(handle);
  if (!batch->in_creator_process())
    return FailedPrecondition(
        "this batch belongs to the parent process; a forked child must open its own feed");
  if (!batch->live()) return FailedPrecondition("this batch was released already");
  return batch;
}

pf_tensor DescribeTensor(const Batch& batch, const TensorPlace& place) {
  const uint32_t batch_size = batch.session().offer().layout.batch_size;
  const uint32_t samples = batch.descriptor().samples;
  pf_tensor tensor = DescribeDense(place.spec, samples, batch_size);
  tensor.data = batch.session().slots().address(batch.descriptor().slot) + place.offset;
  tensor.bytes = place.sample_bytes * (place.spec.packed() ? batch_size : samples);
  tensor.device = batch.session().slots().device();
  tensor.writable = batch.session().offer().read_only ? 0 : 1;
  return tensor;
}

pf_batch_info DescribeBatch(const Batch& batch) {
  const BatchDescriptor& descriptor = batch.descriptor();
  pf_batch_info info{};
  info.epoch = descriptor.epoch;
  info.index = descriptor.batch_index;
  info.samples = descriptor.samples;
  info.skipped = descriptor.skipped;
  info.last_of_epoch = (descriptor.flags & kFlagLastOfEpoch) != 0 ? 1 : 0;
  info.held = batch.session().pages().held();
  info.data = batch.session().slots().address(descriptor.slot);
  return info;
}

// Implements pf_next. Sets *out to NULL; the caller sets it to the batch.
Result<Batch*> TakeNext(pf_feed* feed, int64_t timeout_ms, pf_batch** out) {
  PassOnLog();
  if (out == nullptr) return InvalidArgument("batch is NULL; give the address of a pf_batch*");
  *out = nullptr;
  RETURN_IF_ERROR(CheckFeed(feed));
  if (feed->in_next.exchange(true, std::memory_order_acquire))
    return FailedPrecondition("take a batch: another call takes one; use a feed in one thread at a time");
  const auto leave = [](std::atomic<bool>* in_next) { in_next->store(false, std::memory_order_release); };
  const std::unique_ptr<std::atomic<bool>, decltype(leave)> inside(&feed->in_next, leave);
  if (timeout_ms == PF_ONLY_LOOK) {
    ASSIGN_OR_RETURN(Batch* const ready, feed->feed->Look());
    return ready != nullptr ? Result<Batch*>(ready) : Status(Code::kDeadlineExceeded, "no batch is ready");
  }
  ASSIGN_OR_RETURN(const auto timeout, ReadTimeout(timeout_ms));
  return feed->feed->Next(timeout);
}

}  // namespace
}  // namespace pinfeed

using namespace pinfeed;  // NOLINT(google-build-using-namespace): this file is the border of the namespace

extern "C" {

pf_result pf_open(const pf_open_options* options, pf_feed** feed) {
  return Guarded([&]() -> Status {
    if (feed == nullptr) return InvalidArgument("feed is NULL; give the address of a pf_feed*");
    *feed = nullptr;
    ASSIGN_OR_RETURN(FeedOptions checked, MakeFeedOptions(options));
    ASSIGN_OR_RETURN(std::unique_ptr<Feed> opened, Feed::Open(std::move(checked)));
    *feed = new pf_feed(std::move(opened));
    return OkStatus();
  });
}

void pf_close(pf_feed* feed) {
  (void)Guarded([&]() -> Status {
    delete feed;
    PassOnLog();  // of threads that have ended by now
    return OkStatus();
  });
}

pf_result pf_get_feed_info(const pf_feed* feed, pf_feed_info* info) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckFeed(feed));
    const FeedOffer& offer = feed->feed->offer();
    pf_feed_info values{};
    values.batch_size = offer.layout.batch_size;
    values.tensor_count = static_cast<uint32_t>(offer.layout.tensors.size());
    values.slot_count = offer.slot_count;
    values.reconnects = feed->feed->reconnects();
    values.dataset_samples = offer.dataset_samples;
    values.batches_per_epoch = offer.batches_per_epoch;
    values.slot_bytes = offer.layout.slot_stride;
    values.fingerprint = feed->feed->constants().fingerprint.c_str();
    values.backend = BackendName(offer.backend);
    values.classes = feed->classes.data();
    values.class_count = feed->classes.size();
    values.device = offer.OnGpu() ? feed->feed->device() : -1;
    values.decode = feed->feed->constants().decode.c_str();
    values.decoder = feed->feed->constants().decoder.c_str();
    values.output_count = static_cast<uint32_t>(offer.outputs.size());
    values.left_out = feed->left_out.data();
    values.left_out_count = feed->left_out.size();
    values.resident_bytes = offer.resident ? offer.resident->bytes : 0;
    return FillStruct(info, values, "pf_feed_info_init");
  });
}

pf_result pf_next(pf_feed* feed, int64_t timeout_ms, pf_batch** batch) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(Batch* const next, TakeNext(feed, timeout_ms, batch));
    *batch = Wrap(next);
    return OkStatus();
  });
}

pf_result pf_get_batch_info(const pf_batch* batch, pf_batch_info* info) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const Batch* const checked, CheckBatch(batch));
    return FillStruct(info, DescribeBatch(*checked), "pf_batch_info_init");
  });
}

pf_result pf_next_info(pf_feed* feed, int64_t timeout_ms, pf_batch** batch, pf_batch_info* info) {
  return Guarded([&]() -> Status {
    // Checked first, since a batch taken before a failure would be lost.
    RETURN_IF_ERROR(FillStruct(info, pf_batch_info{}, "pf_batch_info_init"));
    ASSIGN_OR_RETURN(Batch* const next, TakeNext(feed, timeout_ms, batch));
    *batch = Wrap(next);
    return FillStruct(info, DescribeBatch(*next), "pf_batch_info_init");
  });
}

pf_result pf_count_copied(pf_feed* feed) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckFeed(feed));
    feed->feed->CountCopied();
    return OkStatus();
  });
}

pf_result pf_get_tensor(const pf_batch* batch, uint32_t index, pf_tensor* tensor) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const Batch* const checked, CheckBatch(batch));
    const auto& tensors = checked->session().offer().layout.tensors;
    if (index >= tensors.size()) {
      return InvalidArgument("tensor " + std::to_string(index) + " of a batch that has " +
                             std::to_string(tensors.size()));
    }
    return FillTensor(tensor, DescribeTensor(*checked, tensors[index]));
  });
}

pf_result pf_get_row_offsets(const pf_batch* batch, uint32_t index, int64_t* offsets) {
  return Guarded([&]() -> Status {
    ASSIGN_OR_RETURN(const Batch* const checked, CheckBatch(batch));
    const auto& outputs = checked->session().offer().outputs;
    if (offsets == nullptr) return InvalidArgument("offsets is NULL");
    if (index >= outputs.size() || !outputs[index].spec.extents)
      return InvalidArgument("output " + std::to_string(index) + " is no packed output of this feed");
    return checked->RowOffsets(index, {offsets, size_t{checked->descriptor().samples} + 1});
  });
}

pf_result pf_get_output(const pf_feed* feed, uint32_t index, pf_tensor* tensor) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckFeed(feed));
    const FeedOffer& offer = feed->feed->offer();
    if (index >= offer.outputs.size()) {
      return InvalidArgument("output " + std::to_string(index) + " of a feed that has " +
                             std::to_string(offer.outputs.size()));
    }
    const TensorSpec& spec = offer.outputs[index].spec;
    pf_tensor values = DescribeDense(spec, offer.layout.batch_size, offer.layout.batch_size);
    ASSIGN_OR_RETURN(const uint64_t sample_bytes, spec.SampleBytes());
    if (!CheckedMul(sample_bytes, offer.layout.batch_size, &values.bytes))
      return Internal("an output of the daemon's offer is too large to be counted");
    values.device = offer.OnGpu() ? feed->feed->device() : -1;
    values.writable = 1;
    values.name = feed->outputs[index].c_str();
    return FillTensor(tensor, values);
  });
}

pf_result pf_batch_write(pf_batch* batch, void* const* outputs, uint32_t output_count, void* stream) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckBatch(batch).status());
    return Unwrap(batch)->Write({outputs, outputs == nullptr ? 0 : output_count}, stream);
  });
}

pf_result pf_batch_release_on(pf_batch* batch, void* stream) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckBatch(batch).status());
    return Unwrap(batch)->ReleaseOn(stream);
  });
}

pf_result pf_batch_give_back(pf_batch* batch) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckBatch(batch).status());
    return Unwrap(batch)->GiveBack();
  });
}

void pf_batch_retain(pf_batch* batch) {
  if (batch == nullptr) return;
  (void)Guarded([&]() -> Status {
    Unwrap(batch)->Retain();
    return OkStatus();
  });
}

void pf_batch_release(pf_batch* batch) {
  if (batch == nullptr) return;
  (void)Guarded([&]() -> Status {
    Unwrap(batch)->Release();
    return OkStatus();
  });
}

pf_result pf_cursor(const pf_feed* feed, char* buffer, size_t capacity, size_t* needed) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckFeed(feed));
    if (buffer == nullptr && capacity > 0)
      return InvalidArgument("buffer is NULL with a capacity of " + std::to_string(capacity));
    const std::string json = CursorToJson(feed->feed->cursor());
    const size_t bytes = json.size() + 1;
    if (needed != nullptr) *needed = bytes;
    if (capacity < bytes) {
      return Status(Code::kOutOfRange, "the cursor needs " + std::to_string(bytes) +
                                           " bytes, the buffer has " + std::to_string(capacity));
    }
    std::memcpy(buffer, json.c_str(), bytes);
    return OkStatus();
  });
}

pf_result pf_seek(pf_feed* feed, const char* cursor_json) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckFeed(feed));
    if (cursor_json == nullptr) return InvalidArgument("cursor_json is NULL");
    ASSIGN_OR_RETURN(const Cursor cursor, CursorFromJson(cursor_json));
    return feed->feed->Seek(cursor);
  });
}

pf_result pf_seek_epoch(pf_feed* feed, uint64_t epoch) {
  return Guarded([&]() -> Status {
    RETURN_IF_ERROR(CheckFeed(feed));
    return feed->feed->SeekEpoch(epoch);
  });
}

pf_result pf_invite_producer(pf_feed* feed, uint32_t lane, char** invitation, size_t* size) {
  return Guarded([&]() -> Status {
    if (invitation == nullptr || size == nullptr) return InvalidArgument("invitation or size is NULL");
    *invitation = nullptr;
    *size = 0;
    RETURN_IF_ERROR(CheckFeed(feed));
    ASSIGN_OR_RETURN(const std::string bytes, feed->feed->InviteProducer(lane));
    *invitation = static_cast<char*>(std::malloc(bytes.size() + 1));
    if (*invitation == nullptr) return ResourceExhausted("out of memory for an invitation");
    std::memcpy(*invitation, bytes.c_str(), bytes.size() + 1);
    *size = bytes.size();
    return OkStatus();
  });
}

}  // extern "C"
