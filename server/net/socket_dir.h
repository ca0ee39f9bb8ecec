// SPDX-License-Identifier: Apache-2.0
// The directory of the daemon's sockets, locked by one daemon at a time.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/base/unique_handle.h"

namespace pinfeed {

// Identifies the file at a path, to detect later whether it was replaced. Does not follow a symbolic link.
struct FileId {
  dev_t device = 0;
  ino_t number = 0;
  bool operator==(const FileId&) const = default;
  // Returns nothing if no file exists.
  static std::optional<FileId> Of(const std::string& path);
};
// Removes the file unless it was replaced, for example by the next daemon's.
void UnlinkIfSame(const std::string& path, const std::optional<FileId>& file);
// Creates a file that every user may read, as far as the umask allows, replacing any file at `path`. Never
// follows a link or writes into an existing file.
Result<FileId> WriteNewFile(const std::string& path, std::string_view text);

// Purpose: the exclusive use of a socket directory. Owns: the flock on DIR/pinfeedd.lock, which the kernel
// drops when the process ends; with `temporary`, the directory too. Threads: one at a time. Errors: Lock says
// what is wrong with the directory, or which process holds the lock.
class SocketDir {
 public:
  // Returns the error that Lock would return, except that another daemon may hold the lock. Changes nothing.
  static Status Check(const std::string& directory);
  // A temporary directory is removed at the end if it holds nothing but the lock.
  static Result<SocketDir> Lock(const std::string& directory, bool temporary);
  SocketDir(SocketDir&& other) noexcept = default;
  SocketDir& operator=(SocketDir&& other) = delete;
  ~SocketDir();

  // Returns kFailedPrecondition, naming the process, if another process listens on the directory's socket
  // although the lock was free: its lock file was removed. Waits for a process that is about to end.
  Status CheckUnserved() const;

  // For flock(2) only.
  int lock() const { return lock_.get(); }
  std::string rpc_path() const { return directory_ + "/pinfeed.sock"; }
  std::string lifeline_path() const { return directory_ + "/lifeline.sock"; }
  std::string http_port_path() const { return directory_ + "/http.port"; }

 private:
  SocketDir(std::string directory, UniqueFd lock, bool temporary)
      : directory_(std::move(directory)), lock_(std::move(lock)), temporary_(temporary) {}
  std::string lock_path() const { return directory_ + "/pinfeedd.lock"; }

  std::string directory_;
  UniqueFd lock_;  // null after a move
  bool temporary_;
};

}  // namespace pinfeed
