// SPDX-License-Identifier: Apache-2.0
// The functions of pinfeed.h that need no feed: version, errors, log, calls to the daemon.
#include "client/src/api/c_api.h"

#include <cstdlib>

#include "client/src/base/client_log.h"
#include "client/src/link/address.h"
#include "client/src/link/daemon.h"
#include "client/src/link/tls_channel.h"

namespace pinfeed {
namespace {

thread_local bool message_is_gone = false;  // needs no destructor, so it outlives the message

std::string& LastError() {
  struct Message {
    std::string text = {};
    ~Message() { message_is_gone = true; }
  };
  thread_local Message message;
  if (!message_is_gone) return message.text;
  // A destructor of the program's own static or thread-local objects calls the library at the thread's end.
  thread_local std::string* late = nullptr;
  if (late == nullptr) late = new std::string;  // for as long as the thread
  return *late;
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
  try {
    LastError() = message;
  } catch (...) {
    LastError().clear();  // no memory for the text: only the code is reported
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
  return pinfeed::LastError().c_str();
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
