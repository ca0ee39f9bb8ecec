// SPDX-License-Identifier: Apache-2.0
#include "server/net/tls_server.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include "common/base/quote.h"
#include "common/tls/tls_identity.h"

namespace pinfeed {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&::BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;

constexpr int kReceiveBytes = 128 << 10;
constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};

Bio ReadOnlyBio(const std::string& pem) {
  return {::BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &::BIO_free};
}

// Accepts HTTP/2 only; otherwise the handshake fails.
int ChooseProtocol(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* length,
                   const unsigned char* offered, unsigned int offered_length, void* /*data*/) {
  unsigned char* found = nullptr;
  if (::SSL_select_next_proto(&found, length, kHttp2.data(), kHttp2.size(), offered, offered_length) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

std::string TextOf(const ASN1_STRING* string) {
  unsigned char* utf8 = nullptr;
  const int length = ::ASN1_STRING_to_UTF8(&utf8, string);
  if (length < 0) {
    ::ERR_clear_error();
    return {};
  }
  std::string text(reinterpret_cast<const char*>(utf8), static_cast<size_t>(length));
  ::OPENSSL_free(utf8);
  return text;
}

// Returns the certificate's alternative names. The subject's common name counts only if there are none (RFC
// 6125).
std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, decltype(&::GENERAL_NAMES_free)> alternatives(
      static_cast<GENERAL_NAMES*>(::X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &::GENERAL_NAMES_free);
  for (const int type : {GEN_DNS, GEN_URI}) {
    for (int i = 0; alternatives != nullptr && i < sk_GENERAL_NAME_num(alternatives.get()); ++i) {
      const GENERAL_NAME* const name = sk_GENERAL_NAME_value(alternatives.get(), i);
      if (name->type == type) names.push_back(TextOf(name->d.ia5));
    }
  }
  if (!names.empty()) return names;
  X509_NAME* const subject = ::X509_get_subject_name(certificate);
  const int place = ::X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (place >= 0) names.push_back(TextOf(::X509_NAME_ENTRY_get_data(::X509_NAME_get_entry(subject, place))));
  return names;
}

std::string PemOf(X509* certificate) {
  const Bio bio(::BIO_new(::BIO_s_mem()), &::BIO_free);
  ::PEM_write_bio_X509(bio.get(), certificate);
  char* text = nullptr;
  const long length = ::BIO_get_mem_data(bio.get(), &text);  // NOLINT(google-runtime-int): OpenSSL's
  return {text, static_cast<size_t>(length)};
}

// Purpose: one TLS connection. Owns: the socket and its TLS state. Threads: one at a time. Errors:
// ByteStream's.
class TlsStream final : public ByteStream {
 public:
  // `ssl` is null when memory ran out; the stream is then broken from the start.
  TlsStream(UniqueFd socket, SSL* ssl) : socket_(std::move(socket)), ssl_(ssl, &::SSL_free) {
    if (ssl_ == nullptr) return;
    ::SSL_set_fd(ssl_.get(), socket_.get());
    ::SSL_set_accept_state(ssl_.get());
  }

  int fd() const override { return socket_.get(); }
  ssize_t Read(char* to, size_t max_bytes) override {
    return Do([&] { return ::SSL_read(ssl_.get(), to, static_cast<int>(max_bytes)); });
  }
  ssize_t Write(const char* from, size_t bytes) override {
    return Do([&] { return ::SSL_write(ssl_.get(), from, static_cast<int>(bytes)); });
  }
  bool has_more() const override { return ssl_ != nullptr && ::SSL_pending(ssl_.get()) > 0; }
  bool needs_to_write() const override { return needs_to_write_; }
  const TlsPeer* peer() const override { return peer_ ? &*peer_ : nullptr; }
  const std::string& fault() const override { return fault_; }

 private:
  template <typename Call>
  ssize_t Do(const Call& call) {
    if (ssl_ == nullptr || broken_) return kBroken;
    ::ERR_clear_error();
    const int moved = call();
    const int error = ::SSL_get_error(ssl_.get(), moved);
    needs_to_write_ = error == SSL_ERROR_WANT_WRITE;
    if (!peer_ && ::SSL_is_init_finished(ssl_.get()) == 1) {
      const Certificate certificate(::SSL_get1_peer_certificate(ssl_.get()), &::X509_free);
      if (certificate != nullptr) peer_ = TlsPeer{NamesOf(certificate.get()), PemOf(certificate.get())};
    }
    if (moved > 0 && peer_) return moved;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return kWouldBlock;
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    broken_ = true;
    if (!peer_) {
      const char* const reason = ::ERR_reason_error_string(::ERR_peek_last_error());
      fault_ = std::string("its TLS handshake ended: ") + (reason != nullptr ? reason : "the client hung up");
      const auto verified = ::SSL_get_verify_result(ssl_.get());
      if (verified != X509_V_OK) fault_ += std::string(": ") + ::X509_verify_cert_error_string(verified);
    }
    ::ERR_clear_error();
    return kBroken;
  }

  const UniqueFd socket_;
  const std::unique_ptr<SSL, decltype(&::SSL_free)> ssl_;
  bool broken_ = false;
  bool needs_to_write_ = false;
  std::optional<TlsPeer> peer_;
  std::string fault_;
};

}  // namespace

std::string Describe(const TlsPeer& peer) {
  constexpr size_t kMaxNames = 8;
  std::string text;
  for (size_t i = 0; i < peer.names.size() && i < kMaxNames; ++i)
    text += (i == 0 ? "" : ", ") + QuotePath(peer.names[i]);
  if (peer.names.size() > kMaxNames) text += ", ...";
  return "the certificate of " + (text.empty() ? "nobody" : text);
}

// The identity was checked when it was loaded, so only memory can run out here. Handshakes then fail.
TlsServer::Context TlsServer::MakeContext(const TlsIdentity& identity) {
  Context context(::SSL_CTX_new(::TLS_server_method()), &::SSL_CTX_free);
  if (context == nullptr) return context;
  SSL_CTX* const raw = context.get();
  ::SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  // Each handshake checks the certificate again, so sessions are not resumed; renegotiation is off.
  ::SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  ::SSL_CTX_set_num_tickets(raw, 0);
  ::SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(
      raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_cipher_list(raw, "ECDHE+AESGCM:ECDHE+CHACHA20");
  ::SSL_CTX_set_alpn_select_cb(raw, &ChooseProtocol, nullptr);
  ::SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Whatever admin_ca has is trusted, an intermediate CA without its root too, as in gRPC's clients.
  ::X509_VERIFY_PARAM_set_flags(::SSL_CTX_get0_param(raw), X509_V_FLAG_PARTIAL_CHAIN);

  const Bio chain = ReadOnlyBio(identity.certificate);
  for (bool first = true;; first = false) {
    X509* const certificate = ::PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr);
    if (certificate == nullptr) break;
    if (first) {
      ::SSL_CTX_use_certificate(raw, certificate);
      ::X509_free(certificate);
    } else {
      ::SSL_CTX_add_extra_chain_cert(raw, certificate);  // takes ownership
    }
  }
  const Bio key_text = ReadOnlyBio(identity.key);
  const std::unique_ptr<EVP_PKEY, decltype(&::EVP_PKEY_free)> key(
      ::PEM_read_bio_PrivateKey(key_text.get(), nullptr, nullptr, nullptr), &::EVP_PKEY_free);
  ::SSL_CTX_use_PrivateKey(raw, key.get());
  const Bio authorities = ReadOnlyBio(identity.ca);
  while (true) {
    const Certificate authority(::PEM_read_bio_X509(authorities.get(), nullptr, nullptr, nullptr),
                                &::X509_free);
    if (authority == nullptr) break;
    ::X509_STORE_add_cert(::SSL_CTX_get_cert_store(raw), authority.get());
    ::SSL_CTX_add_client_CA(raw, authority.get());
  }
  ::ERR_clear_error();
  return context;
}

std::unique_ptr<ByteStream> TlsServer::Secure(UniqueFd socket) {
  if (const std::optional<AdminAccess::Version> newer = access_.NewerThan(known_)) {
    context_ = MakeContext(newer->identity);
    known_ = newer->number;
  }
  // Otherwise the kernel would buffer megabytes from a client that is not being read.
  const int kept = kReceiveBytes;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &kept, sizeof kept);
  return std::make_unique<TlsStream>(std::move(socket),
                                     context_ == nullptr ? nullptr : ::SSL_new(context_.get()));
}

std::string TlsServer::DenialReason(const TlsPeer& peer) const {
  std::string fault = "is not in this daemon's admin_clients";
  if (access_.Admit(peer.names)) fault = ValidityFault(peer.certificate, std::chrono::system_clock::now());
  return fault.empty() ? fault : Describe(peer) + " " + fault;
}

}  // namespace pinfeed
