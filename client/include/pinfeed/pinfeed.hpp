// SPDX-License-Identifier: Apache-2.0
// pinfeed's C++ interface: RAII and exceptions over pinfeed.h, in this header alone (C++17 or later). Link
// libpinfeed. Long because: one header can be copied along with the library, and needs no folder of others.
//
//   pinfeed::Feed feed(R"({"dataset": {"path": "/data/train"}, "batch_size": 256, "order": "SHUFFLE"})");
//   for (pinfeed::Batch& batch : feed) {
//     pinfeed::TensorView images = batch["image"];
//     Train(images.data_as<uint8_t>(), images.shape());
//   }  // each batch goes back to the daemon when it is destroyed
//
// On a GPU (FeedOptions::device) what the transforms make goes into memory of one's own, in a stream's order:
//
//   while (std::optional<pinfeed::Batch> batch = feed.Next()) {
//     batch->Write(stream, {images, labels});  // cudaMalloc'ed, as large as feed.Outputs() says
//     Train(images, labels, stream);
//   }  // `stream`: a cudaStream_t or CUstream, null the default one
#ifndef PINFEED_PINFEED_HPP_
#define PINFEED_PINFEED_HPP_

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
// Part of every mangled name, so that no other class of the same name in a program, of another version say,
// is taken for one of these.
inline namespace api0 {

// Purpose: a failed call, with the code to act on. what() says what was tried, on what, and what to do.
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
  char kind;  // u, i, f as KindOf() tells; c: nothing arithmetic. The 16-bit floats are their bits.
  const char* name;
};
inline Element ElementOf(pf_dtype dtype) {
  static constexpr Element kElements[] = {
      // by pf_dtype
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

// Purpose: one tensor of a batch, or what an output is like. Borrows the batch's memory: valid while the
// batch is. A value.
class TensorView {
 public:
  explicit TensorView(const pf_tensor& tensor) : tensor_(tensor) {}

  const char* name() const { return tensor_.name; }
  pf_dtype dtype() const { return tensor_.dtype; }
  // Dimension 0 is the number of samples.
  std::vector<int64_t> shape() const { return {tensor_.shape, tensor_.shape + tensor_.dims}; }
  std::vector<int64_t> strides() const { return {tensor_.strides, tensor_.strides + tensor_.dims}; }
  // On a GPU an address there; null of an output.
  void* data() const { return tensor_.data; }
  // T: the arithmetic type that the dtype is (int64_t for PF_INT64), or a class of its size (std::complex,
  // std::byte, a library's bfloat16; uint16_t, too, for the 16-bit floats). Throws Error
  // (PF_INVALID_ARGUMENT) for others.
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
  int device() const { return tensor_.device; }  // -1: the host
  bool writable() const { return tensor_.writable != 0; }
  const pf_tensor& raw() const { return tensor_; }

 private:
  pf_tensor tensor_;
};

// Purpose: one batch. Owns it: the destructor gives the slot back. Move-only; a batch that was moved from or
// given back is empty, and only to be assigned to or destroyed. Threads: may be destroyed on any; otherwise
// one at a time. Giving back does not block, but for the last batch of a session that ended before it, which
// unmaps the memory: on a GPU up to 10 s (pf_close). Errors: Error.
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

  TensorView operator[](uint32_t index) const {
    pf_tensor tensor;
    pf_tensor_init(&tensor, sizeof(tensor));
    detail::Check(pf_get_tensor(batch_.get(), index, &tensor));
    return TensorView(tensor);
  }
  TensorView operator[](int index) const { return (*this)[static_cast<uint32_t>(index)]; }
  // Throws Error (PF_INVALID_ARGUMENT) when no tensor has the name.
  TensorView operator[](const std::string& name) const {
    pf_tensor tensor;
    pf_tensor_init(&tensor, sizeof(tensor));
    for (uint32_t i = 0; pf_get_tensor(batch_.get(), i, &tensor) == PF_OK; ++i) {
      if (name == tensor.name) return TensorView(tensor);
    }
    throw Error(PF_INVALID_ARGUMENT, "the batch has no tensor '" + name + "'");
  }

  // Gives the slot back now. On a GPU: when no work that is queued may touch it any more.
  void Release() { batch_.reset(); }
  // Gives the slot back when `stream` (a CUstream or cudaStream_t, null the default one) gets there: work put
  // there before may still read it. On the host at once. After an Error the batch is still one's own.
  void ReleaseOn(void* stream) {
    detail::Check(pf_batch_release_on(batch_.get(), stream));
    (void)batch_.release();
  }
  // Writes every output into memory of one's own, in the order of Feed::Outputs() and as large as it says,
  // and gives the slot back: when `stream` gets there, on the host at once. Errors as ReleaseOn; what was
  // written is then unspecified.
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
  std::string address;      // empty: $PINFEED_ADDRESS, else the system's socket
  std::string cursor_json;  // what Feed::Cursor gave, to resume, a group too; empty: from the start
  std::string client_name;  // empty: the process name
  std::chrono::milliseconds open_timeout{10'000};        // for the daemon, or, where it stops, the next one
  std::chrono::milliseconds reconnect_timeout{300'000};  // -1 ms: for ever
  // The CUDA ordinal of the GPU that is to get the batches; -1: host memory. See pf_open_options.
  int device = -1;
};

// Purpose: an ordered stream of batches. Owns the session; batches may outlive it. Threads: one at a time.
// Errors: Error, with the codes of the function of pinfeed.h; how long a call may block is said there, too
// (the destructor is pf_close: on a GPU up to 10 s). Move-only.
class Feed {
 public:
  // `spec_json` is a pinfeed.v1.FeedSpec.
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

  // The next batch; nothing after the last epoch. Waits as long as the daemon lives. Throws Error
  // (PF_UNAVAILABLE) when it vanished and is not back within reconnect_timeout; the next call then waits as
  // long again. Other errors as pf_next.
  std::optional<Batch> Next() { return NextFor(-1); }
  // Throws Error (PF_DEADLINE_EXCEEDED) when no batch is ready in time.
  std::optional<Batch> Next(std::chrono::milliseconds timeout) { return NextFor(timeout.count()); }

  pf_feed_info Info() const {
    pf_feed_info info;
    pf_feed_info_init(&info, sizeof(info));
    detail::Check(pf_get_feed_info(feed_.get(), &info));
    return info;
  }

  // What Batch::Write makes, for a whole batch: bytes() is what to allocate, data() null. The names live as
  // long as the feed.
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

  // Names of the labels 0, 1, ..., as the bytes of their folders' names; empty when the dataset has none.
  std::vector<std::string> Classes() const {
    const pf_feed_info info = Info();
    return {info.classes, info.classes + info.class_count};
  }

  // The position behind the last batch given, to be stored with a checkpoint.
  std::string Cursor() const {
    size_t needed = 0;
    const pf_result asked = pf_cursor(feed_.get(), nullptr, 0, &needed);
    if (asked != PF_OUT_OF_RANGE) detail::Check(asked);
    std::vector<char> buffer(needed);
    detail::Check(pf_cursor(feed_.get(), buffer.data(), buffer.size(), &needed));
    return buffer.data();
  }
  // These end the session and open another, unless the feed stands there already. After an Error it stands
  // where it was.
  void Seek(const std::string& cursor_json) { detail::Check(pf_seek(feed_.get(), cursor_json.c_str())); }
  void SeekEpoch(uint64_t epoch) { detail::Check(pf_seek_epoch(feed_.get(), epoch)); }

  pf_feed* get() const { return feed_.get(); }

  // Purpose: range-for over the rest of the feed. The present batch goes back when the iterator moves on,
  // unless it was moved out.
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

// pinfeed.v1.GetStatusResponse and ListDatasetsResponse as JSON. An empty address as in FeedOptions. These
// and AdminJson wait at most 10 s.
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
// See pf_set_tls; what is empty comes from the environment.
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
