// SPDX-License-Identifier: Apache-2.0
// The few HTTP/2 frames that the guard itself sends to clients.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pinfeed {

// An empty SETTINGS frame and the acknowledgement of the client's SETTINGS.
std::string SettingsAndAck();
// A call's response: PERMISSION_DENIED with this message.
std::string PermissionDeniedResponse(uint32_t stream, std::string_view message);
// RST_STREAM with CANCEL.
std::string CancelStream(uint32_t stream);
// GOAWAY with ENHANCE_YOUR_CALM and this reason.
std::string GoAwayEnhanceYourCalm(std::string_view reason);

}  // namespace pinfeed
