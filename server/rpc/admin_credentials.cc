// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/admin_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "common/quote.h"
#include "common/tls_identity.h"

namespace pinfeed {
namespace {

// `find` gives the values of a property of gRPC's. A certificate with names of its own (RFC 6125) is known by
// those, and by its subject's only where it has none.
template <typename Find>
std::vector<std::string> NamesBy(const Find& find) {
  std::vector<std::string> names = find(GRPC_PEER_DNS_PROPERTY_NAME);
  for (std::string& uri : find(GRPC_PEER_URI_PROPERTY_NAME)) names.push_back(std::move(uri));
  return names.empty() ? find(GRPC_X509_CN_PROPERTY_NAME) : names;
}

std::vector<std::string> PropertiesOf(const grpc_auth_context* context, const char* property) {
  std::vector<std::string> values;
  grpc_auth_property_iterator each = grpc_auth_context_find_properties_by_name(context, property);
  while (const grpc_auth_property* const found = grpc_auth_property_iterator_next(&each))
    values.emplace_back(found->value, found->value_length);
  return values;
}

std::string PropertyOf(const grpc_auth_context* context, const char* property) {
  std::vector<std::string> values = PropertiesOf(context, property);
  return values.empty() ? "" : std::move(values.front());
}

std::vector<std::string> NamesOf(const grpc_auth_context* context) {
  return NamesBy([context](const char* property) { return PropertiesOf(context, property); });
}

std::string Joined(const std::vector<std::string>& names) {
  constexpr size_t kMostNames = 8;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMostNames; ++i)
    text += (i == 0 ? "" : ", ") + QuotePath(names[i]);
  if (names.size() > kMostNames) text += ", ...";
  return text.empty() ? "of nobody" : "of " + text;
}

// Purpose: gRPC's C++ interface has no certificates that change when one says so; its C interface, which this
// is over, has. Borrows: what it is given. Threads: gRPC's. Errors: none. Invariant: outlives the server that
// it is given to; of one listener.
class AdminCredentials final : public grpc::ServerCredentials {
 public:
  AdminCredentials(const AdminAccess& access, Refusals& refusals)
      : access_(access),
        refusals_(refusals),
        core_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &Fetch, this))) {
    grpc_server_credentials_set_auth_metadata_processor(core_, {&Process, nullptr, this});
  }
  ~AdminCredentials() override { grpc_server_credentials_release(core_); }
  AdminCredentials(const AdminCredentials&) = delete;
  AdminCredentials& operator=(const AdminCredentials&) = delete;

  // Process has this place.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>& /*other*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), core_);
  }

  // At each connection, under the listener's lock.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config) {
    auto& mine = *static_cast<AdminCredentials*>(self);
    const std::optional<AdminAccess::Version> newer = mine.access_.NewerThan(mine.given_);
    if (!newer) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{newer->identity.key.c_str(), newer->identity.certificate.c_str()};
    *config = grpc_ssl_server_certificate_config_create(newer->identity.ca.c_str(), &pair, 1);
    mine.given_ = newer->number;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  // At each call, whatever it calls.
  static void Process(void* self, grpc_auth_context* context, const grpc_metadata* /*metadata*/,
                      size_t /*count*/, grpc_process_auth_metadata_done_cb done, void* call) {
    const auto& mine = *static_cast<const AdminCredentials*>(self);
    const std::vector<std::string> names = NamesOf(context);
    std::string fault = "is not in this daemon's admin_clients";
    if (mine.access_.Admit(names)) {
      // The handshake looked at the dates, but a connection, or a session that is resumed, may outlive them.
      fault = ValidityFault(PropertyOf(context, GRPC_X509_PEM_CERT_PROPERTY_NAME),
                            std::chrono::system_clock::now());
    }
    if (fault.empty()) {
      done(call, nullptr, 0, nullptr, 0, GRPC_STATUS_OK, nullptr);
      return;
    }
    const std::string refused = "the certificate " + Joined(names) + " " + fault;
    mine.refusals_.Count(Refusal::kCertificate, "a call to the admin endpoint: " + refused);
    done(call, nullptr, 0, nullptr, 0, GRPC_STATUS_PERMISSION_DENIED, refused.c_str());
  }

  const AdminAccess& access_;
  Refusals& refusals_;
  uint64_t given_ = 0;
  grpc_server_credentials* const core_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeAdminCredentials(const AdminAccess& access, Refusals& refusals) {
  return std::make_shared<AdminCredentials>(access, refusals);
}

std::optional<std::string> AdminOf(const grpc::AuthContext& context, const AdminAccess& access) {
  return access.Admit(NamesBy([&context](const char* property) {
    std::vector<std::string> values;
    for (const grpc::string_ref& value : context.FindPropertyValues(property))
      values.emplace_back(value.data(), value.size());
    return values;
  }));
}

}  // namespace pinfeed
