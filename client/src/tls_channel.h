// SPDX-License-Identifier: Apache-2.0
// Calls to a daemon on another host. In: a TCP address, and the files that the program or the environment
// names. Out: a channel by mutual TLS.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/tls/tls_identity.h"

namespace pinfeed {

struct TlsSettings {
  std::string ca;  // paths; empty: $PINFEED_TLS_CA and so on
  std::string certificate;
  std::string key;
  std::string name;  // that the daemon's certificate must have; empty: $PINFEED_TLS_NAME, else the address's
};

// Process-wide.
void SetTls(TlsSettings settings);

// What a call needs, read now.
struct TlsParty {
  TlsIdentity identity;
  std::string name;  // empty: the address's
};
// kInvalidArgument says which file is missing or at fault; a certificate that is not valid now is a fault
// too.
Result<TlsParty> ReadTlsParty(const std::string& address);

// Connects at the first call. `address` is one of IsTcpAddress's.
std::shared_ptr<grpc::Channel> TlsChannel(const std::string& address, const TlsParty& party,
                                          grpc::ChannelArguments arguments);

// What to do about a call that gRPC ended as UNAVAILABLE, by what it says of it.
std::string TlsHint(std::string_view reason);

}  // namespace pinfeed
