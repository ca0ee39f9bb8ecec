// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/grpc_status.h"

#include <cstddef>
#include <string>

namespace pinfeed {
namespace {

// gRPC sends the message percent-encoded in the trailing metadata, which peers limit to 8 KiB.
constexpr size_t kMaxEncodedMessage = 6000;

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string& text = status.message();
  size_t encoded = 0;
  size_t end = 0;
  for (; end < text.size(); ++end) {
    const auto byte = static_cast<unsigned char>(text[end]);
    encoded += byte >= 0x20 && byte <= 0x7E && byte != '%' ? 1 : 3;
    if (encoded > kMaxEncodedMessage) break;
  }
  if (end == text.size()) return {static_cast<grpc::StatusCode>(status.code()), text};
  // Do not split a UTF-8 sequence.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return {static_cast<grpc::StatusCode>(status.code()), text.substr(0, end) + " ..."};
}

}  // namespace pinfeed
