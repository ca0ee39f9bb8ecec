// SPDX-License-Identifier: Apache-2.0
#include "server/net/guard_frames.h"

#include <array>
#include <cstdio>

#include "server/net/client_frames.h"

namespace pinfeed {
namespace {

constexpr size_t kMaxMessageBytes = 1024;
constexpr uint32_t kCancel = 8;
constexpr uint32_t kEnhanceYourCalm = 11;
constexpr uint32_t kLargestStream = 0x7FFFFFFF;

std::string Number(uint32_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xFF);
  return text;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  return Number(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + Number(stream, 4) + payload;
}

// An integer with a 7-bit prefix (RFC 7541, section 5.1).
std::string Length(size_t value) {
  constexpr size_t kPrefix = 127;
  std::string text;
  if (value < kPrefix) return text += static_cast<char>(value);
  text += static_cast<char>(kPrefix);
  for (value -= kPrefix; value >= 128; value /= 128) text += static_cast<char>(value % 128 + 128);
  return text += static_cast<char>(value);
}

// A literal without indexing (RFC 7541, section 6.2.2): it leaves the table shared by gRPC and the client
// unchanged.
std::string Header(std::string_view name, std::string_view value) {
  std::string text(1, '\0');
  for (const std::string_view each : {name, value}) text.append(Length(each.size())).append(each);
  return text;
}

// Percent-encodes what is not printable, as gRPC does.
std::string Encoded(std::string_view message) {
  std::string text;
  for (const char c : message.substr(0, kMaxMessageBytes)) {
    if (c >= ' ' && c <= '~' && c != '%') {
      text += c;
      continue;
    }
    std::array<char, 4> code{};
    std::snprintf(code.data(), code.size(), "%%%02X", static_cast<unsigned char>(c));
    text += code.data();
  }
  return text;
}

}  // namespace

std::string SettingsAndAck() {
  return Frame(FrameType::kSettings, 0, 0, "") + Frame(FrameType::kSettings, kAck, 0, "");
}

std::string PermissionDeniedResponse(uint32_t stream, std::string_view message) {
  constexpr char kStatus200 = '\x88';  // from HPACK's static table
  constexpr std::string_view kPermissionDenied = "7";
  return Frame(FrameType::kHeaders, kEndHeaders | kEndStream, stream,
               std::string(1, kStatus200) + Header("content-type", "application/grpc") +
                   Header("grpc-status", kPermissionDenied) + Header("grpc-message", Encoded(message)));
}

std::string CancelStream(uint32_t stream) {
  return Frame(FrameType::kResetStream, 0, stream, Number(kCancel, 4));
}

std::string GoAwayEnhanceYourCalm(std::string_view reason) {
  return Frame(FrameType::kGoAway, 0, 0,
               Number(kLargestStream, 4) + Number(kEnhanceYourCalm, 4) +
                   std::string(reason.substr(0, kMaxMessageBytes)));
}

}  // namespace pinfeed
