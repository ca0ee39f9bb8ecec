// SPDX-License-Identifier: Apache-2.0
// The owner type for C handles. Defines UniqueFd for file descriptors; other handles define theirs.
#pragma once

#include <unistd.h>

#include <utility>

namespace pinfeed {

// Purpose: owns one C handle and closes it on destruction. `Traits` define `using Handle`, `static constexpr
// Handle Null()` and `static void Close(Handle) noexcept`. Threads: one at a time for the owner; the handle's
// own rules apply to the handle. Errors: those of closing are ignored. A moved-from owner is empty.
template <typename Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;

  UniqueHandle() noexcept : handle_(Traits::Null()) {}
  explicit UniqueHandle(Handle handle) noexcept : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(std::exchange(other.handle_, Traits::Null())) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) reset(std::exchange(other.handle_, Traits::Null()));
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() { reset(); }

  Handle get() const& noexcept { return handle_; }
  Handle get() const&& = delete;  // the handle would outlive its owner
  explicit operator bool() const noexcept { return handle_ != Traits::Null(); }
  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, Traits::Null()); }
  void reset(Handle handle = Traits::Null()) noexcept {
    const Handle old = std::exchange(handle_, handle);
    if (old != Traits::Null()) Traits::Close(old);
  }

 private:
  Handle handle_;
};

struct FdTraits {
  using Handle = int;
  static constexpr int Null() { return -1; }
  static void Close(int fd) noexcept { ::close(fd); }
};
using UniqueFd = UniqueHandle<FdTraits>;

}  // namespace pinfeed
