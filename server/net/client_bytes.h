// SPDX-License-Identifier: Apache-2.0
// The bytes of a client on their way to gRPC.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "server/net/byte_stream.h"

namespace pinfeed {

// Purpose: a buffer whose first bytes are cleared: they may be forwarded. Threads: one at a time. Errors:
// none. Invariant: bytes that are not cleared are never written.
class ClientBytes {
 public:
  static constexpr size_t kCapacity = 16384;

  size_t room() const { return kCapacity - bytes_.size(); }
  void Append(std::string_view bytes) { bytes_.append(bytes); }
  std::string_view uncleared() const { return std::string_view(bytes_).substr(cleared_); }
  // Clears the first `bytes` uncleared ones.
  void Clear(size_t bytes) { cleared_ += bytes; }
  // Writes cleared bytes until none is left or gRPC's side is full. If it is broken, the next read reports
  // it.
  void WriteTo(ByteStream& server) {
    full_ = false;
    while (cleared_ > 0 && !full_) {
      const ssize_t moved = server.Write(bytes_.data(), cleared_);
      full_ = moved <= 0;
      if (!full_) Drop(static_cast<size_t>(moved));
    }
  }
  // Whether cleared bytes wait because gRPC's side is full.
  bool blocked() const { return full_; }
  void DropCleared() {
    Drop(cleared_);
    full_ = false;
  }

 private:
  void Drop(size_t bytes) {
    bytes_.erase(0, bytes);
    cleared_ -= bytes;
  }

  std::string bytes_;  // at most kCapacity
  size_t cleared_ = 0;
  bool full_ = false;
};

}  // namespace pinfeed
