// SPDX-License-Identifier: Apache-2.0
// pinfeed's C++ interface: RAII and exceptions over pinfeed.h, header-only, C++17 or later. Link libpinfeed.
// Long because: a program can copy this one header along with the library.
//
//   pinfeed::Feed feed(R"({"dataset": {"path": "/data/train"}, "batch_size": 256, "order": "SHUFFLE",
//                          "transforms": [{"random_resized_crop": {"size": [224]}}]})");
//   for (pinfeed::Batch& batch : feed) {
//     pinfeed::TensorView images = batch["image"];
//     Train(images.data_as<uint8_t>(), images.shape());
//   }  // each batch's slot is returned when the batch is destroyed
//
// With FeedOptions::device, batches arrive on a GPU. Batch::Write produces the tensors that the transforms
// ask for in the caller's memory, in the order of a stream:
//
//   while (std::optional<pinfeed::Batch> batch = feed.Next()) {
//     batch->Write(stream, {images, labels});  // allocated by cudaMalloc, sizes from feed.Outputs()
//     Train(images, labels, stream);
//   }  // `stream`: a cudaStream_t or CUstream; null: the default stream
#ifndef PINFEED_PINFEED_HPP_
#define PINFEED_PINFEED_HPP_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "pinfeed/pinfeed.h"

namespace pinfeed {
// Part of every mangled name, so that classes of another version in the same program are never confused with
// these.
inline namespace api0 {

// Purpose: a failed call. code() is for the program; what() says what was tried, on what object, and what to
// do.
class Error : public std::runtime_error {
 public:
  Error(pf_result code, const std::string& message)
      : std::runtime_error(std::string(pf_result_name(code)) + ": " + message), code_(code) {}
  pf_result code() const noexcept { return code_; }

 private:
  pf_result code_;
};

namespace detail {
inline void Check(pf_result result) {
  if (result != PF_OK) throw Error(result, pf_last_error());
}
inline std::string TakeJson(pf_result result, char* json) {
  Check(result);
  const std::unique_ptr<char, decltype(&pf_free)> owner(json, pf_free);
  return json;
}
inline const char* OrNull(const std::string& text) {
  return text.empty() ? nullptr : text.c_str();
}

struct Element {
  size_t bytes;
  char kind;  // u, i, f as KindOf() returns; c: not arithmetic. 16-bit floats count as u.
  const char* name;
};
inline Element ElementOf(pf_dtype dtype) {
  static constexpr Element kElements[] = {
      // indexed by pf_dtype
      {0, '?', "of no type"}, {1, 'u', "bool"},    {1, 'u', "uint8"},     {1, 'i', "int8"},
      {2, 'u', "uint16"},     {2, 'i', "int16"},   {4, 'u', "uint32"},    {4, 'i', "int32"},
      {8, 'u', "uint64"},     {8, 'i', "int64"},   {2, 'u', "float16"},   {2, 'u', "bfloat16"},
      {4, 'f', "float32"},    {8, 'f', "float64"}, {8, 'c', "complex64"}, {16, 'c', "complex128"}};
  return dtype >= PF_BOOL && dtype <= PF_COMPLEX128 ? kElements[dtype] : kElements[0];
}
template <typename T>
constexpr char KindOf() {
  if (std::is_floating_point_v<T>) return 'f';
  return std::is_unsigned_v<T> ? 'u' : 'i';
}
}  // namespace detail

// Purpose: describes one tensor of a batch, or one output of a feed. Borrows the batch's memory, so it is
// valid as long as the batch. Copyable. Threads: any.
class TensorView {
 public:
  explicit TensorView(const pf_tensor& tensor) : tensor_(tensor) {}

  const char* name() const { return tensor_.name; }
  pf_dtype dtype() const { return tensor_.dtype; }
  // Dimension 0 is the number of samples. For an output it is batch_size, and for a packed tensor the number
  // of rows that fit into its memory.
  std::vector<int64_t> shape() const { return {tensor_.shape, tensor_.shape + tensor_.dims}; }
  std::vector<int64_t> strides() const { return {tensor_.strides, tensor_.strides + tensor_.dims}; }
  // Aligned to 512 bytes. On a GPU, a device address. Null for an output.
  void* data() const { return tensor_.data; }
  // Returns data() as T*. T is the arithmetic type of the dtype (int64_t for PF_INT64), or any class of its
  // size (std::complex, std::byte, a library's bfloat16). For 16-bit floats uint16_t works too. Throws Error
  // (PF_INVALID_ARGUMENT) for other types.
  template <typename T>
  T* data_as() const {
    const detail::Element element = detail::ElementOf(dtype());
    bool fits = sizeof(T) == element.bytes;
    if (std::is_arithmetic_v<T> && sizeof(T) > 1) fits = fits && element.kind == detail::KindOf<T>();
    if (!fits) {
      throw Error(PF_INVALID_ARGUMENT, std::string("data_as(): the elements of tensor '") + name() +
                                           "' are " + element.name + ", not of the type asked for");
    }
    return static_cast<T*>(tensor_.data);
  }
  uint64_t bytes() const { return tensor_.bytes; }
  int device() const { return tensor_.device; }  // the caller's CUDA ordinal; -1: host
  bool writable() const { return tensor_.writable != 0; }
  // Whether the number of rows differs between samples. The rows are in any order; see pf_tensor::extents.
  bool packed() const { return tensor_.extents != 0; }
  const pf_tensor& raw() const { return tensor_; }

 private:
  pf_tensor tensor_;
};

// Purpose: one batch. Owns it: the destructor returns the slot. Move-only; a batch that was moved from,
// released or written may only be assigned to or destroyed. Threads: may be destroyed on any thread;
// otherwise one at a time. Returning the slot does not block, except for the last batch of a session that has
// ended: that unmaps the memory and may block (see pf_close). Errors: Error.
class Batch {
 public:
  explicit Batch(pf_batch* batch) : batch_(batch, pf_batch_release) {
    pf_batch_info_init(&info_, sizeof(info_));
    detail::Check(pf_get_batch_info(batch, &info_));
  }

  uint64_t epoch() const { return info_.epoch; }
  uint64_t index() const { return info_.index; }
  uint32_t samples() const { return info_.samples; }
  uint32_t skipped() const { return info_.skipped; }
  bool last_of_epoch() const { return info_.last_of_epoch != 0; }

  template <
      typename Index,
      std::enable_if_t<std::is_convertible_v<Index, int64_t> && !std::is_floating_point_v<Index>, int> = 0>
  TensorView operator[](Index index) const {
    pf_tensor tensor;
    pf_tensor_init(&tensor, sizeof(tensor));
    detail::Check(pf_get_tensor(
        batch_.get(), static_cast<uint32_t>(std::min(static_cast<uint64_t>(index), uint64_t{UINT32_MAX})),
        &tensor));
    return TensorView(tensor);
  }
  // Throws Error (PF_INVALID_ARGUMENT) if no tensor has this name.
  TensorView operator[](const std::string& name) const {
    pf_tensor tensor;
    pf_tensor_init(&tensor, sizeof(tensor));
    for (uint32_t i = 0;; ++i) {
      const pf_result got = pf_get_tensor(batch_.get(), i, &tensor);
      if (got == PF_INVALID_ARGUMENT && batch_ != nullptr) break;  // it has no more
      detail::Check(got);
      if (name == tensor.name) return TensorView(tensor);
    }
    throw Error(PF_INVALID_ARGUMENT, "the batch has no tensor '" + name + "'");
  }

  // Returns the first row of each sample in packed output `index` (of Feed::Outputs()), then the total number
  // of rows.
  // See pf_get_row_offsets.
  std::vector<int64_t> RowOffsets(uint32_t index) const {
    std::vector<int64_t> offsets(size_t{samples()} + 1);
    detail::Check(pf_get_row_offsets(batch_.get(), index, offsets.data()));
    return offsets;
  }

  // Returns the slot now. On a GPU, no queued work may access the batch any more.
  void Release() { batch_.reset(); }
  // Returns the slot once `stream` has executed the work queued so far, which may still read the batch. On
  // the host, at once. `stream` is a CUstream or cudaStream_t; null: the default stream. On Error the caller
  // still owns the batch.
  void ReleaseOn(void* stream) {
    detail::Check(pf_batch_release_on(batch_.get(), stream));
    (void)batch_.release();
  }
  // Writes every output into the caller's memory and returns the slot, in the order of `stream`; on the host,
  // at once. `outputs` has one pointer per entry of Feed::Outputs(), to memory of that entry's size. On Error
  // the caller still owns the batch, and the outputs are unspecified.
  void Write(void* stream, const std::vector<void*>& outputs) {
    detail::Check(
        pf_batch_write(batch_.get(), outputs.data(), static_cast<uint32_t>(outputs.size()), stream));
    (void)batch_.release();
  }
  pf_batch* get() const { return batch_.get(); }

 private:
  std::unique_ptr<pf_batch, decltype(&pf_batch_release)> batch_;
  pf_batch_info info_{};
};

struct FeedOptions {
  std::string address = {};      // empty: $PINFEED_ADDRESS, or else /run/pinfeed/pinfeed.sock
  std::string cursor_json = {};  // from Feed::Cursor, to resume; empty: from the start
  std::string client_name = {};  // empty: the process name
  std::chrono::milliseconds open_timeout{10'000};        // for the daemon's answer, or its successor's
  std::chrono::milliseconds reconnect_timeout{300'000};  // -1 ms: no limit
  // The CUDA ordinal of the GPU that gets the batches; -1: host memory. See pf_open_options.
  int device = -1;
};

// Purpose: an ordered stream of batches. Owns the session; batches may outlive it. Threads: one at a time.
// Errors: Error, with the code of the underlying pf_ function. Blocking is described in pinfeed.h; the
// destructor calls pf_close, which may block. Move-only.
class Feed {
 public:
  // `spec_json` is a pinfeed.v1.FeedSpec. Blocks and fails like pf_open.
  explicit Feed(const std::string& spec_json, const FeedOptions& options = {}) {
    pf_open_options raw;
    pf_open_options_init(&raw, sizeof(raw));
    raw.address = detail::OrNull(options.address);
    raw.spec_json = spec_json.c_str();
    raw.cursor_json = detail::OrNull(options.cursor_json);
    raw.client_name = detail::OrNull(options.client_name);
    raw.open_timeout_ms = options.open_timeout.count();
    raw.reconnect_timeout_ms = options.reconnect_timeout.count();
    raw.device = options.device;
    pf_feed* feed = nullptr;
    detail::Check(pf_open(&raw, &feed));
    feed_.reset(feed);
  }

  // Returns the next batch, or nothing after the last epoch. Waits as long as the daemon lives. Throws Error
  // (PF_UNAVAILABLE) if the daemon vanished and reconnecting failed for reconnect_timeout; the next call
  // tries for as long again. Other errors are those of pf_next.
  std::optional<Batch> Next() { return NextFor(-1); }
  // Throws Error (PF_DEADLINE_EXCEEDED) if no batch is ready in time. A negative time is none left.
  std::optional<Batch> Next(std::chrono::milliseconds timeout) {
    return NextFor(std::max<int64_t>(timeout.count(), 0));
  }

  // Its pointers are valid as long as the feed.
  pf_feed_info Info() const {
    pf_feed_info info;
    pf_feed_info_init(&info, sizeof(info));
    detail::Check(pf_get_feed_info(feed_.get(), &info));
    return info;
  }

  // What Batch::Write produces for a whole batch: bytes() is the size to allocate, data() is null. Names are
  // valid as long as the feed.
  std::vector<TensorView> Outputs() const {
    std::vector<TensorView> outputs;
    const uint32_t count = Info().output_count;
    for (uint32_t i = 0; i < count; ++i) {
      pf_tensor tensor;
      pf_tensor_init(&tensor, sizeof(tensor));
      detail::Check(pf_get_output(feed_.get(), i, &tensor));
      outputs.emplace_back(tensor);
    }
    return outputs;
  }

  // Names of labels 0, 1, ...: the raw bytes of folder names. Empty if the dataset names no classes.
  std::vector<std::string> Classes() const {
    const pf_feed_info info = Info();
    return {info.classes, info.classes + info.class_count};
  }

  // Messages about columns of the dataset that are in no tensor. Empty if the spec names its fields.
  std::vector<std::string> LeftOut() const {
    const pf_feed_info info = Info();
    return {info.left_out, info.left_out + info.left_out_count};
  }

  // Returns the position after the last batch returned, as JSON, to be stored with a checkpoint.
  std::string Cursor() const {
    size_t needed = 0;
    const pf_result asked = pf_cursor(feed_.get(), nullptr, 0, &needed);
    if (asked != PF_OUT_OF_RANGE) detail::Check(asked);
    std::vector<char> buffer(needed);
    detail::Check(pf_cursor(feed_.get(), buffer.data(), buffer.size(), &needed));
    return buffer.data();
  }
  // Moves the feed to a position. Ends the session and opens another, unless the feed is there already. On
  // Error the feed keeps its position. See pf_seek.
  void Seek(const std::string& cursor_json) { detail::Check(pf_seek(feed_.get(), cursor_json.c_str())); }
  void SeekEpoch(uint64_t epoch) { detail::Check(pf_seek_epoch(feed_.get(), epoch)); }

  pf_feed* get() const { return feed_.get(); }

  // Purpose: range-for over the rest of the feed. Advancing returns the current batch's slot, unless the
  // batch was moved out.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Iterator() = default;
    explicit Iterator(Feed* feed) : feed_(feed) { ++*this; }
    Batch& operator*() { return *batch_; }
    Batch* operator->() { return &*batch_; }
    Iterator& operator++() {
      batch_.reset();  // before waiting: the daemon may need the slot
      batch_ = feed_->Next();
      return *this;
    }
    bool operator==(const Iterator& other) const { return batch_.has_value() == other.batch_.has_value(); }
    bool operator!=(const Iterator& other) const { return !(*this == other); }

   private:
    Feed* feed_ = nullptr;
    std::optional<Batch> batch_;
  };
  Iterator begin() { return Iterator(this); }
  Iterator end() { return {}; }

 private:
  std::optional<Batch> NextFor(int64_t timeout_ms) {
    pf_batch* batch = nullptr;
    const pf_result result = pf_next(feed_.get(), timeout_ms, &batch);
    if (result == PF_OUT_OF_RANGE) return std::nullopt;
    detail::Check(result);
    return Batch(batch);
  }

  std::unique_ptr<pf_feed, decltype(&pf_close)> feed_{nullptr, pf_close};
};

// Calls to the daemon. They return the response (pinfeed.v1.GetStatusResponse, ListDatasetsResponse) as JSON.
// Each, like AdminJson, waits at most 10 s. `address` is as in FeedOptions.
inline std::string StatusJson(const std::string& address = {}) {
  char* json = nullptr;
  const pf_result result = pf_status_json(detail::OrNull(address), &json);
  return detail::TakeJson(result, json);
}
inline std::string DatasetsJson(const std::string& address = {}) {
  char* json = nullptr;
  const pf_result result = pf_datasets_json(detail::OrNull(address), &json);
  return detail::TakeJson(result, json);
}
// See pf_set_tls. Empty values come from the environment.
inline void SetTls(const std::string& ca, const std::string& certificate, const std::string& key,
                   const std::string& name = {}) {
  detail::Check(
      pf_set_tls(detail::OrNull(ca), detail::OrNull(certificate), detail::OrNull(key), detail::OrNull(name)));
}
// See pf_admin_json.
inline std::string AdminJson(const std::string& method, const std::string& request_json,
                             const std::string& address = {}) {
  char* json = nullptr;
  const pf_result result =
      pf_admin_json(detail::OrNull(address), method.c_str(), request_json.c_str(), &json);
  return detail::TakeJson(result, json);
}

}  // namespace api0
}  // namespace pinfeed

#endif  // PINFEED_PINFEED_HPP_
