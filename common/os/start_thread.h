// SPDX-License-Identifier: Apache-2.0
// Starts named threads. This is the only place in the project that starts a thread.
#pragma once

#include <pthread.h>

#include <string>
#include <thread>
#include <utility>

namespace pinfeed {

// Starts a thread that tools such as `ps -L` and debuggers show as `name`, truncated to 15 characters. An
// exception that leaves `body` terminates the process. Throws std::system_error when no thread can be
// created.
template <typename Body>
[[nodiscard]] std::thread StartThread(const std::string& name, Body body) {
  return std::thread([name = name.substr(0, 15), body = std::move(body)]() mutable noexcept {
    ::pthread_setname_np(::pthread_self(), name.c_str());
    body();
  });
}

}  // namespace pinfeed
