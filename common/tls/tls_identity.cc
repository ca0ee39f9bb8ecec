// SPDX-License-Identifier: Apache-2.0
#include "common/tls/tls_identity.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/quote.h"
#include "common/base/unique_handle.h"

namespace pinfeed {
namespace {

constexpr off_t kMaxFileBytes = 1 << 20;

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)>;
using Context = std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)>;
using Connection = std::unique_ptr<SSL, decltype(&::SSL_free)>;

std::string Describe(const TlsFile& file) {
  return file.name + ": " + QuotePath(file.path);
}

// Returns OpenSSL's reason for the last error and clears the error queue.
std::string TakeReason() {
  const char* const reason = ::ERR_reason_error_string(::ERR_peek_last_error());
  std::string text = reason != nullptr ? reason : "no reason given";
  ::ERR_clear_error();
  return text;
}

Result<std::string> ReadSmallFile(const TlsFile& file, bool secret) {
  const auto failed = [&](const std::string& what, int error) {
    return InvalidArgument(
        ErrnoStatus(file.name + ": " + what + " " + QuotePath(file.path), error).message() +
        "; it must be a PEM file that this user may read");
  };
  if (file.path.empty()) return InvalidArgument(file.name + ": no file given");
  const UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return failed("open", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return failed("stat", errno);
  if (!S_ISREG(info.st_mode) || info.st_size > kMaxFileBytes)
    return InvalidArgument(Describe(file) + " is not a regular file of at most 1 MiB; name a PEM file");
  if (secret && (info.st_mode & S_IRWXO) != 0) {
    return InvalidArgument(
        Describe(file) +
        " may be read or written by every user; restrict it with: chmod o= " + QuotePath(file.path));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t bytes = ::read(fd.get(), text.data() + have, text.size() - have);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return failed("read", errno);
    if (bytes == 0) break;
    have += static_cast<size_t>(bytes);
  }
  text.resize(have);
  return text;
}

// Returns all certificates, at least one.
Result<std::vector<Certificate>> Parse(const TlsFile& file, const std::string& pem) {
  const Bio bio(::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &::BIO_free);
  std::vector<Certificate> certificates;
  ::ERR_clear_error();
  while (true) {
    Certificate next(::PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), &::X509_free);
    if (next == nullptr) break;
    certificates.push_back(std::move(next));
  }
  const bool ended = ERR_GET_REASON(::ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (certificates.empty() && ended) {
    ::ERR_clear_error();
    return InvalidArgument(
        Describe(file) + " contains no certificate; it must be PEM, with a line -----BEGIN CERTIFICATE-----");
  }
  if (!ended)
    return InvalidArgument(Describe(file) + " contains a malformed certificate (" + TakeReason() +
                           "); create it again");
  ::ERR_clear_error();
  return certificates;
}

// Replaces OpenSSL's default callback, which prompts on the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Result<Key> ParseKey(const TlsFile& file, const std::string& pem) {
  const Bio bio(::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &::BIO_free);
  bool asked = false;
  ::ERR_clear_error();
  Key key(::PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassphrase, &asked), &::EVP_PKEY_free);
  if (key != nullptr) return key;
  const std::string reason = TakeReason();
  if (asked) return InvalidArgument(Describe(file) + " has a passphrase; use a key without one");
  return InvalidArgument(Describe(file) + " contains no private key (" + reason +
                         "); it must be PEM, with a line -----BEGIN PRIVATE KEY-----");
}

// Performs a handshake between the two in memory. Neither verifies the other. The last OpenSSL error is the
// cause of a failure.
bool Handshake(SSL* server, SSL* client) {
  BIO* server_end = nullptr;
  BIO* client_end = nullptr;
  if (::BIO_new_bio_pair(&server_end, 0, &client_end, 0) != 1) return false;
  ::SSL_set_bio(server, server_end, server_end);  // takes ownership of the BIOs
  ::SSL_set_bio(client, client_end, client_end);
  ::SSL_set_accept_state(server);
  ::SSL_set_connect_state(client);
  // Each step transfers what fits into the pair's buffers. Even the largest file needs only a few hundred
  // steps.
  constexpr int kMaxSteps = 1000;
  for (int step = 0; step < kMaxSteps; ++step) {
    for (SSL* const side : {client, server}) {
      ::ERR_clear_error();
      const int result = ::SSL_do_handshake(side);
      const int error = ::SSL_get_error(side, result);
      if (result != 1 && error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
    }
    if (::SSL_is_init_finished(server) == 1 && ::SSL_is_init_finished(client) == 1) return true;
  }
  return false;
}

// Applies the rules of this host's OpenSSL, which gRPC also uses. Only a handshake shows whether a key type
// is usable.
Status CheckUsable(const TlsFiles& files, const Certificate& certificate, const Key& key) {
  const Context context(::SSL_CTX_new(::TLS_method()), &::SSL_CTX_free);
  const Context peer_context(::SSL_CTX_new(::TLS_method()), &::SSL_CTX_free);
  const auto refused = [](const TlsFile& file) {
    return InvalidArgument(
        Describe(file) + " is rejected by TLS on this host (" + TakeReason() +
        "); create it again, with a key of at least 2048 bits RSA or 256 bits ECDSA and SHA-256");
  };
  if (context == nullptr || peer_context == nullptr) return Internal("create a TLS context: " + TakeReason());
  for (SSL_CTX* const each : {context.get(), peer_context.get()})
    ::SSL_CTX_set_min_proto_version(each, TLS1_2_VERSION);
  if (::SSL_CTX_use_certificate(context.get(), certificate.get()) != 1) return refused(files.certificate);
  if (::SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1) return refused(files.key);
  const Connection server(::SSL_new(context.get()), &::SSL_free);
  const Connection client(::SSL_new(peer_context.get()), &::SSL_free);
  if (server == nullptr || client == nullptr) return Internal("create a TLS connection: " + TakeReason());
  if (!Handshake(server.get(), client.get())) return refused(files.certificate);
  ::ERR_clear_error();
  return OkStatus();
}

// Checks the certificate's key usage.
Status CheckPurpose(const TlsFile& file, const Certificate& certificate, TlsSide side) {
  const bool server = side == TlsSide::kServer;
  const int purpose = server ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT;
  if (::X509_check_purpose(certificate.get(), purpose, 0) == 1) return OkStatus();
  ::ERR_clear_error();
  return InvalidArgument(Describe(file) + " is not for TLS " + (server ? "servers" : "clients") +
                         ", by its key usage: the peer would reject it; create it again, with the "
                         "extended key usage " +
                         (server ? "serverAuth" : "clientAuth") + " or with none, and digitalSignature");
}

std::chrono::system_clock::time_point TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (::ASN1_TIME_to_tm(time, &parts) != 1) return {};
  return std::chrono::system_clock::from_time_t(::timegm(&parts));
}

}  // namespace

Result<TlsIdentity> ReadTlsIdentity(const TlsFiles& files, TlsSide side) {
  TlsIdentity identity;
  ASSIGN_OR_RETURN(identity.certificate, ReadSmallFile(files.certificate, false));
  ASSIGN_OR_RETURN(identity.key, ReadSmallFile(files.key, true));
  ASSIGN_OR_RETURN(identity.ca, ReadSmallFile(files.ca, false));
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain, Parse(files.certificate, identity.certificate));
  const Certificate& certificate = chain.front();
  ASSIGN_OR_RETURN(const Key key, ParseKey(files.key, identity.key));
  ASSIGN_OR_RETURN(const std::vector<Certificate> authorities, Parse(files.ca, identity.ca));
  if (::X509_check_private_key(certificate.get(), key.get()) != 1) {
    ::ERR_clear_error();
    return InvalidArgument(files.key.name + ": " + QuotePath(files.key.path) + " is not the key of " +
                           files.certificate.name + " " + QuotePath(files.certificate.path) +
                           "; use a key and a certificate that match");
  }
  RETURN_IF_ERROR(CheckUsable(files, certificate, key));
  RETURN_IF_ERROR(CheckPurpose(files.certificate, certificate, side));
  identity.valid_from = TimeOf(::X509_get0_notBefore(certificate.get()));
  identity.valid_until = TimeOf(::X509_get0_notAfter(certificate.get()));
  for (const Certificate& authority : authorities) {
    identity.ca_valid_until =
        std::max(identity.ca_valid_until, TimeOf(::X509_get0_notAfter(authority.get())));
  }
  return identity;
}

std::string ValidityFault(const TlsIdentity& identity, std::chrono::system_clock::time_point now) {
  if (now < identity.valid_from) return "is not valid before " + UtcText(identity.valid_from);
  if (now > identity.valid_until) return "expired on " + UtcText(identity.valid_until);
  return {};
}

std::string ValidityFault(std::string_view pem, std::chrono::system_clock::time_point now) {
  const Bio bio(::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &::BIO_free);
  const Certificate certificate(::PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), &::X509_free);
  ::ERR_clear_error();
  if (certificate == nullptr) return "cannot be read";
  TlsIdentity identity;
  identity.valid_from = TimeOf(::X509_get0_notBefore(certificate.get()));
  identity.valid_until = TimeOf(::X509_get0_notAfter(certificate.get()));
  return ValidityFault(identity, now);
}

std::string UtcText(std::chrono::system_clock::time_point time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

}  // namespace pinfeed
