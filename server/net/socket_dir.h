// SPDX-License-Identifier: Apache-2.0
// The directory of the sockets, held by one daemon at a time.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Which file a path leads to at the moment, without following a link at its end; to tell whether it is
// replaced later.
struct FileId {
  dev_t device = 0;
  ino_t number = 0;
  bool operator==(const FileId&) const = default;
  // Nothing when there is no such file.
  static std::optional<FileId> Of(const std::string& path);
};
// Removes the file unless it is another by now: a successor's.
void UnlinkIfSame(const std::string& path, const std::optional<FileId>& file);
// Puts a new file, readable by all, in the place of whatever has the name: nothing is followed or written to
// that was there.
Result<FileId> WriteNewFile(const std::string& path, std::string_view text);

// Purpose: the right to use a socket directory. Owns: the flock on DIR/pinfeedd.lock, which the kernel drops
// when the process ends; with `temporary` the directory too. Threads: one at a time. Errors: Lock says what
// is wrong with the directory, or which process holds it.
class SocketDir {
 public:
  // What Lock would find wrong with the directory; makes and changes nothing. That another serves it is fine.
  static Status Check(const std::string& directory);
  // A temporary directory is removed at the end, if nothing but the lock is left in it.
  static Result<SocketDir> Lock(const std::string& directory, bool temporary);
  SocketDir(SocketDir&& other) noexcept = default;
  SocketDir& operator=(SocketDir&& other) = delete;
  ~SocketDir();

  // kFailedPrecondition, naming the process, when one listens on the socket of the directory although the
  // lock was free: somebody removed the lock's file below it. One that is about to end is waited for.
  Status CheckUnserved() const;

  // For flock(2) alone.
  int lock() const { return lock_.get(); }
  std::string rpc_path() const { return directory_ + "/pinfeed.sock"; }
  std::string lifeline_path() const { return directory_ + "/lifeline.sock"; }
  std::string http_port_path() const { return directory_ + "/http.port"; }

 private:
  SocketDir(std::string directory, UniqueFd lock, bool temporary)
      : directory_(std::move(directory)), lock_(std::move(lock)), temporary_(temporary) {}
  std::string lock_path() const { return directory_ + "/pinfeedd.lock"; }

  std::string directory_;
  UniqueFd lock_;  // null once moved from
  bool temporary_;
};

}  // namespace pinfeed
