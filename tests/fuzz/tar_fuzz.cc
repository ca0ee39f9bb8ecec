// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a tar archive. Members must lie within it, one behind the other, and have names.
#include <cstddef>
#include <cstdint>
#include <optional>

#include "server/dataset/formats/tar_reader.h"
#include "tests/fuzz/bytes.h"

namespace pinfeed {
namespace {

Status ReadArchive(const Bytes& file) {
  TarReader archive(file);
  for (uint64_t end = 0;;) {
    ASSIGN_OR_RETURN(const std::optional<TarMember> member, archive.Next());
    if (!member) return OkStatus();
    PF_CHECK(!member->name.empty() && member->name.size() <= TarReader::kMaxNameBytes &&
                 member->name.find('\0') == std::string::npos,
             "a member has a name");
    PF_CHECK(
        member->offset > end && member->offset <= file.size() && member->size <= file.size() - member->offset,
        "a member lies within the archive, behind the one before");
    end = member->offset + member->size;
  }
}

}  // namespace
}  // namespace pinfeed

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  const Status status = ReadArchive(Bytes({data, size}));
  PF_CHECK(status.ok() || status.message().find(" at offset ") != std::string::npos, "an error says where");
  return 0;
}
