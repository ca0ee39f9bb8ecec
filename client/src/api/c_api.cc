// SPDX-License-Identifier: Apache-2.0
// The functions of pinfeed.h that need no feed: version, errors, log, calls to the daemon.
#include "client/src/api/c_api.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "client/src/base/client_log.h"
#include "client/src/link/address.h"
#include "client/src/link/daemon.h"
#include "client/src/link/tls_channel.h"

namespace pinfeed {
namespace {

// These need no destructors, so they outlive the last error's text: destructors of the program's own static
// and thread-local objects may call the library when that is gone.
thread_local bool last_error_is_gone = false;
thread_local std::array<char, 1024> late_error{};  // of such calls, cut

// Null when it is gone.
std::string* LastError() {
  struct LastErrorText {
    std::string text = {};
    ~LastErrorText() { last_error_is_gone = true; }
  };
  thread_local LastErrorText last_error;
  return last_error_is_gone ? nullptr : &last_error.text;
}

template <typename CallFunction>
pf_result JsonCall(const char* address, char** json, const CallFunction& call) {
  return Guarded([&]() -> Status {
    if (json == nullptr) return InvalidArgument("json is NULL; give the address of a char*");
    *json = nullptr;
    ASSIGN_OR_RETURN(const std::string path, ResolveAddress(address));
    ASSIGN_OR_RETURN(const std::string text, call(path, std::chrono::steady_clock::now() + kCallTimeout));
    *json = ::strdup(text.c_str());
    if (*json == nullptr) return ResourceExhausted("out of memory for the daemon's answer");
    return OkStatus();
  });
}

}  // namespace

pf_result Report(const Status& status) noexcept {
  return status.ok() ? PF_OK : Report(status.code(), status.message().c_str());
}

pf_result Report(Code code, const char* message) noexcept {
  std::string* const last_error = LastError();
  if (last_error == nullptr) {
    std::snprintf(late_error.data(), late_error.size(), "%s", message);
    return static_cast<pf_result>(code);
  }
  try {
    *last_error = message;
  } catch (...) {
    last_error->clear();  // no memory for the text: only the code is reported
  }
  return static_cast<pf_result>(code);
}

}  // namespace pinfeed

using pinfeed::InitStruct;

extern "C" {

uint32_t pf_version(void) {
  return PF_VERSION;
}

const char* pf_result_name(pf_result result) {
  return pinfeed::CodeName(static_cast<pinfeed::Code>(result)).data();
}

const char* pf_last_error(void) {
  const std::string* const last_error = pinfeed::LastError();
  return last_error != nullptr ? last_error->c_str() : pinfeed::late_error.data();
}

void pf_set_log(pf_log_function function, void* user) {
  pinfeed::SetLogFunction(function, user);
}

void pf_open_options_init(pf_open_options* options, size_t size) {
  pf_open_options defaults{};
  defaults.open_timeout_ms = 10'000;
  defaults.reconnect_timeout_ms = 300'000;
  defaults.device = -1;
  InitStruct(options, size, defaults);
}
void pf_feed_info_init(pf_feed_info* info, size_t size) {
  InitStruct(info, size, pf_feed_info{});
}
void pf_batch_info_init(pf_batch_info* info, size_t size) {
  InitStruct(info, size, pf_batch_info{});
}
void pf_tensor_init(pf_tensor* tensor, size_t size) {
  InitStruct(tensor, size, pf_tensor{});
}

void pf_task_init(pf_task* task, size_t size) {
  InitStruct(task, size, pf_task{});
}

pf_result pf_set_tls(const char* ca, const char* certificate, const char* key, const char* name) {
  return pinfeed::Guarded([&]() -> pinfeed::Status {
    const auto text = [](const char* given) { return given == nullptr ? std::string() : std::string(given); };
    pinfeed::SetTls({text(ca), text(certificate), text(key), text(name)});
    return pinfeed::OkStatus();
  });
}

pf_result pf_status_json(const char* address, char** json) {
  return pinfeed::JsonCall(address, json, pinfeed::StatusJson);
}

pf_result pf_datasets_json(const char* address, char** json) {
  return pinfeed::JsonCall(address, json, pinfeed::DatasetsJson);
}

pf_result pf_join_batcher_json(const char* address, const char* request_json, char** json) {
  return pinfeed::JsonCall(
      address, json,
      [&](const std::string& path, pinfeed::SteadyTime deadline) -> pinfeed::Result<std::string> {
        if (request_json == nullptr) return pinfeed::InvalidArgument("request_json is NULL");
        return pinfeed::JoinBatcherJson(path, request_json, deadline);
      });
}

pf_result pf_admin_json(const char* address, const char* method, const char* request_json, char** json) {
  return pinfeed::JsonCall(
      address, json,
      [&](const std::string& path, pinfeed::SteadyTime deadline) -> pinfeed::Result<std::string> {
        if (method == nullptr || request_json == nullptr)
          return pinfeed::InvalidArgument("method or request_json is NULL");
        return pinfeed::AdminJson(path, method, request_json, deadline);
      });
}

pf_result pf_trace(const char* address, const char* request_json, pf_trace_function function, void* user) {
  return pinfeed::Guarded([&]() -> pinfeed::Status {
    if (request_json == nullptr || function == nullptr)
      return pinfeed::InvalidArgument("request_json or function is NULL");
    ASSIGN_OR_RETURN(const std::string path, pinfeed::ResolveLocalAddress(address, "trace"));
    const auto on_message = [&](const std::string* json) {
      return function(json == nullptr ? nullptr : json->c_str(), user) == 0;
    };
    return pinfeed::Trace(path, request_json, on_message,
                          std::chrono::steady_clock::now() + pinfeed::kCallTimeout);
  });
}

void pf_free(char* json) {
  std::free(json);
}

}  // extern "C"
