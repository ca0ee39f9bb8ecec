// SPDX-License-Identifier: Apache-2.0
#include "client/src/link/tls_channel.h"

#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "client/src/base/fork_guard.h"
#include "common/base/quote.h"
#include "common/base/sync.h"

namespace pinfeed {
namespace {

struct Settings {
  Mutex mutex;
  TlsSettings given PF_GUARDED_BY(mutex);
};

Settings g_settings;
const HeldAcrossForks kTlsHeld(g_settings.mutex);

TlsSettings Given() {
  const MutexLock lock(g_settings.mutex);
  return g_settings.given;
}

// Returns the value given, or the environment's, with the name of its origin for messages.
TlsFile Choose(const std::string& given, const char* option, const char* variable) {
  if (!given.empty()) return {option, given};
  const char* const value = std::getenv(variable);
  return {std::string("$") + variable, value != nullptr ? value : ""};
}

// Silences gRPC's log: stderr belongs to the program, and the call's error has the details.
void KeepSilent(gpr_log_func_args* /*line*/) {}

}  // namespace

void SetTls(TlsSettings settings) {
  const MutexLock lock(g_settings.mutex);
  g_settings.given = std::move(settings);
}

Result<TlsParty> ReadTlsParty(const std::string& address) {
  const TlsSettings given = Given();
  const TlsFiles files = {.ca = Choose(given.ca, "--tls-ca", "PINFEED_TLS_CA"),
                          .certificate = Choose(given.certificate, "--tls-cert", "PINFEED_TLS_CERT"),
                          .key = Choose(given.key, "--tls-key", "PINFEED_TLS_KEY")};
  std::string missing;
  for (const auto& [file, option] :
       {std::pair(&files.ca, "--tls-ca"), std::pair(&files.certificate, "--tls-cert"),
        std::pair(&files.key, "--tls-key")}) {
    if (file->path.empty()) missing += std::string(missing.empty() ? "" : ", ") + option;
  }
  if (!missing.empty()) {
    return InvalidArgument(
        QuotePath(address) +
        " is a TCP address, where a daemon is called by TLS with a certificate: give the files "
        "--tls-ca, --tls-cert and --tls-key, or $PINFEED_TLS_CA, $PINFEED_TLS_CERT and "
        "$PINFEED_TLS_KEY (missing: " +
        missing + ")");
  }
  TlsParty party;
  ASSIGN_OR_RETURN(party.identity, ReadTlsIdentity(files, TlsSide::kClient));
  const std::string fault = ValidityFault(party.identity, std::chrono::system_clock::now());
  if (!fault.empty()) {
    return InvalidArgument(files.certificate.name + ": " + QuotePath(files.certificate.path) + " " + fault +
                           "; daemons refuse it: get one that is valid now");
  }
  party.name = Choose(given.name, "--tls-name", "PINFEED_TLS_NAME").path;
  return party;
}

std::string TlsHint(std::string_view reason) {
  const auto says = [&](std::string_view words) { return reason.find(words) != std::string_view::npos; };
  // "Endpoint read failed" is how gRPC reports a TLS alert after its own part of the handshake.
  if (says("Socket closed") || says("Connection reset") || says("Endpoint read failed"))
    return "it hung up in the handshake, as it does when this caller's certificate is not of its admin_ca";
  if (says("Peer name"))
    return "its certificate is for another name: if it is the right daemon, give that by --tls-name";
  if (says("certificate verify failed"))
    return "its certificate is not of the CA in --tls-ca, or not valid now";
  return "is pinfeedd running there, with admin_listen?";
}

std::shared_ptr<grpc::Channel> TlsChannel(const std::string& address, const TlsParty& party,
                                          grpc::ChannelArguments arguments) {
  // The user can turn it on with gRPC's own variable.
  static std::once_flag first;
  std::call_once(first, [] {
    if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(&KeepSilent);
  });
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // destroyed with the channel
  if (!party.name.empty()) arguments.SetSslTargetNameOverride(party.name);
  return grpc::CreateCustomChannel("dns:///" + address,
                                   grpc::SslCredentials({.pem_root_certs = party.identity.ca,
                                                         .pem_private_key = party.identity.key,
                                                         .pem_cert_chain = party.identity.certificate}),
                                   arguments);
}

}  // namespace pinfeed
