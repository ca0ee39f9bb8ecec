// SPDX-License-Identifier: Apache-2.0
// Shared by all functions of the C interface: the last error, the exception barrier, structs that grow,
// times.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include "client/include/pinfeed/pinfeed.h"
#include "common/base/result.h"
#include "common/base/status.h"

namespace pinfeed {

// Stores a failure for pf_last_error on this thread; success leaves the last failure unchanged. Returns the
// result code.
pf_result Report(const Status& status) noexcept;
pf_result Report(Code code, const char* message) noexcept;

// Runs `body`, which returns a Status, and reports any exception as a failure.
template <typename Body>
pf_result Guarded(Body&& body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(Code::kResourceExhausted, "out of memory in libpinfeed");
  } catch (const std::exception& error) {
    return Report(Code::kInternal, error.what());
  } catch (...) {
    return Report(Code::kInternal, "unknown exception in libpinfeed");
  }
}

// A struct of the interface begins with the size that the caller's version has. Init writes `defaults` up to
// that size. Fill writes everything after the size field, up to it.
template <typename T>
void InitStruct(T* out, size_t size, T defaults) noexcept {
  if (out == nullptr || size < sizeof(size_t)) return;
  std::memset(static_cast<void*>(out), 0, size);
  defaults.size = size;
  std::memcpy(static_cast<void*>(out), &defaults, std::min(size, sizeof(T)));
}
template <typename T>
Status FillStruct(T* out, const T& values, const char* init_function) {
  if (out == nullptr || out->size <= sizeof(size_t)) {
    return InvalidArgument(std::string("the struct to fill is NULL or was not prepared with ") +
                           init_function);
  }
  constexpr size_t kSizeField = sizeof(out->size);
  std::memcpy(reinterpret_cast<std::byte*>(out) + kSizeField,
              reinterpret_cast<const std::byte*>(&values) + kSizeField,
              std::min(out->size, sizeof(T)) - kSizeField);
  return OkStatus();
}

// Reads the caller's struct over the defaults in *values, which the fields have that its version lacks.
template <typename T>
Status ReadStruct(const T* given, T* values, const char* name, const char* init_function) {
  if (given == nullptr || given->size <= sizeof(size_t)) {
    return InvalidArgument(std::string(name) + " is NULL or was not prepared with " + init_function);
  }
  if (given->size % alignof(T) != 0) {  // it could end amid a pointer
    return InvalidArgument(std::string(name) + ".size is " + std::to_string(given->size) +
                           ", which no version of the struct has; prepare it with " + init_function);
  }
  std::memcpy(static_cast<void*>(values), given, std::min(given->size, sizeof(T)));
  return OkStatus();
}

// Limits a time to a year: larger values would overflow once added to a time point.
inline std::chrono::milliseconds Bounded(int64_t milliseconds) {
  return std::min<std::chrono::milliseconds>(std::chrono::milliseconds(milliseconds),
                                             std::chrono::hours(24 * 365));
}

// Returns the `timeout_ms` of a function that waits; empty if there is no limit (-1).
inline Result<std::optional<std::chrono::nanoseconds>> ReadTimeout(int64_t timeout_ms) {
  if (timeout_ms < -1)
    return InvalidArgument("timeout_ms is " + std::to_string(timeout_ms) + "; -1 means no limit");
  std::optional<std::chrono::nanoseconds> timeout;
  if (timeout_ms >= 0) timeout = Bounded(timeout_ms);
  return timeout;
}

// Time for the calls to the daemon that have no timeout of their own.
inline constexpr std::chrono::seconds kCallTimeout{10};

}  // namespace pinfeed
