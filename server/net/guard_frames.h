// SPDX-License-Identifier: Apache-2.0
// The few HTTP/2 frames that the daemon sends itself, where gRPC has no part in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pinfeed {

// Empty SETTINGS, and the confirmation of the client's.
std::string SettingsAndAck();
// The answer to a call: PERMISSION_DENIED with this message.
std::string PermissionDeniedResponse(uint32_t stream, std::string_view message);
// RST_STREAM with CANCEL.
std::string CancelStream(uint32_t stream);
// GOAWAY with ENHANCE_YOUR_CALM and this reason.
std::string GoAwayEnhanceYourCalm(std::string_view reason);

}  // namespace pinfeed
