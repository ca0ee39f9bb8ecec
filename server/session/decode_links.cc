// SPDX-License-Identifier: Apache-2.0
#include "server/session/decode_links.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/base/log.h"
#include "common/base/log_pace.h"
#include "server/session/lifeline_frame.h"

namespace pinfeed {
namespace {

constexpr uint32_t kLinkLinesASecond = 200;

struct LinkEnds {
  UniqueFd reader;
  UniqueFd decoder;
  UniqueConnection kept;  // a duplicate
};

Result<LinkEnds> MakeLink() {
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair.data()) != 0)
    return ErrnoStatus("create a link between two members of a group", errno);
  LinkEnds ends{UniqueFd(pair[0]), UniqueFd(pair[1]), UniqueConnection(::fcntl(pair[0], F_DUPFD_CLOEXEC, 0))};
  RefuseForeignFds(pair[0]);  // readers send descriptors, and get none
  if (!ends.kept) return ErrnoStatus("duplicate a link between two members of a group", errno);
  return ends;
}

}  // namespace

UniqueFd DecodeLinks::Add(const Session& session, int lifeline) {
  if (session.shares_on.empty()) return UniqueFd();
  members_.push_back({session.id, session.feed->id(), session.shares_on, session.first, lifeline});
  Member& member = members_.back();
  const Member* const decoder = DecoderFor(member, session.replaces);
  if (decoder == nullptr) return UniqueFd();
  Result<LinkEnds> ends = MakeLink();
  const Status sent = ends.ok()
                          ? SendReader(decoder->lifeline, {member.first.epoch, member.first.batch_index, {}},
                                       ends->decoder.get())
                          : ends.status();
  const LogScope scope(ContextOf(session));
  static LogPace pace(kLinkLinesASecond);
  const auto more = pace.Admit();
  if (!sent.ok()) {
    if (more)
      spdlog::info("{}: decodes images that session {} decodes, too: {}{}", Describe(session),
                   decoder->session_id, sent.message(), *more);
    return UniqueFd();
  }
  member.decoder_id = decoder->session_id;
  member.link = std::move(ends->kept);
  if (more)
    spdlog::info("{}: gets its images decoded by session {}{}", Describe(session), decoder->session_id,
                 *more);
  return std::move(ends->reader);
}

const DecodeLinks::Member* DecodeLinks::DecoderFor(const Member& reader, uint64_t replaced_session) const {
  const auto found = std::ranges::find_if(members_, [&](const Member& member) {
    return member.session_id != reader.session_id && member.session_id != replaced_session &&
           member.decoder_id == 0 && member.feed_id == reader.feed_id && member.gpu == reader.gpu &&
           member.first <= reader.first;
  });
  return found == members_.end() ? nullptr : &*found;
}

void DecodeLinks::Unlink(Member& reader) {
  // Also where a forked child of either process keeps its end open.
  if (reader.link) ::shutdown(reader.link.get(), SHUT_RDWR);
  reader.link.reset();
  reader.decoder_id = 0;
}

void DecodeLinks::Remove(uint64_t session_id) {
  for (Member& member : members_)
    if (member.session_id == session_id || member.decoder_id == session_id) Unlink(member);
  std::erase_if(members_, [&](const Member& member) { return member.session_id == session_id; });
}

}  // namespace pinfeed
