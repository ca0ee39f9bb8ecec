// SPDX-License-Identifier: Apache-2.0
// Threads with names: the one place where this project starts a thread.
#pragma once

#include <pthread.h>

#include <string>
#include <thread>
#include <utility>

namespace pinfeed {

// Starts a thread that tools such as `ps -L` and debuggers show as `name`, cut to 15 characters. An exception
// that leaves `body` ends the process. Throws std::system_error when the system gives no thread.
template <typename Body>
[[nodiscard]] std::thread StartThread(const std::string& name, Body body) {
  return std::thread([name = name.substr(0, 15), body = std::move(body)]() mutable noexcept {
    ::pthread_setname_np(::pthread_self(), name.c_str());
    body();
  });
}

}  // namespace pinfeed
