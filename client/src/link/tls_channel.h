// SPDX-License-Identifier: Apache-2.0
// Channels to a daemon on another host. In: a TCP address, and the files that the program or the environment
// names. Out: a gRPC channel with mutual TLS.
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
  std::string ca;  // paths; empty: from $PINFEED_TLS_CA and so on
  std::string certificate;
  std::string key;
  std::string name;  // name in the daemon's certificate; empty: $PINFEED_TLS_NAME, or else the address's host
};

// Sets the files for the whole process.
void SetTls(TlsSettings settings);

// The files' contents, read now.
struct TlsParty {
  TlsIdentity identity;
  std::string name;  // empty: the address's host
};
// Returns kInvalidArgument naming the file that is missing or invalid. A certificate outside its validity
// period is invalid too.
Result<TlsParty> ReadTlsParty(const std::string& address);

// Returns a channel that connects at its first call. Precondition: IsTcpAddress(address).
std::shared_ptr<grpc::Channel> TlsChannel(const std::string& address, const TlsParty& party,
                                          grpc::ChannelArguments arguments);

// Advice for a call that gRPC ended as UNAVAILABLE, chosen by gRPC's message.
std::string TlsHint(std::string_view reason);

}  // namespace pinfeed
