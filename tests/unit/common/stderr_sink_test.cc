// SPDX-License-Identifier: Apache-2.0
#include "common/base/stderr_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <string>

#include "common/base/unique_handle.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t count = 0; (count = ::read(fd, part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<size_t>(count));
  return text;
}

// The write end blocks, as a stderr does: a sink that waited would never come back.
TEST(StderrSinkTest, LosesLinesWhenThePipeIsFullAndSaysHowMany) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  ASSERT_EQ(::fcntl(read_end.get(), F_SETFL, O_NONBLOCK), 0);
  spdlog::logger logger("test", std::make_shared<StderrSink>(write_end.get()));
  for (int i = 0; i < 3000; ++i) logger.info("{}", std::string(100, 'x'));
  EXPECT_THAT(ReadAll(read_end.get()), Not(HasSubstr("were lost")));
  logger.info("heard");
  const std::string after = ReadAll(read_end.get());
  EXPECT_THAT(after, HasSubstr("log lines were lost"));
  EXPECT_THAT(after, HasSubstr("heard"));
}

// poll() finds room in a terminal when there is any, and a write that blocks waits for as much as it needs.
TEST(StderrSinkTest, ATerminalThatIsNotReadHoldsUpNobody) {
  const UniqueFd reader(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(reader && ::grantpt(reader.get()) == 0 && ::unlockpt(reader.get()) == 0);
  const UniqueFd terminal(::open(::ptsname(reader.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal);
  ASSERT_EQ(::fcntl(reader.get(), F_SETFL, O_NONBLOCK), 0);
  spdlog::logger logger("test", std::make_shared<StderrSink>(terminal.get()));
  for (int i = 0; i < 3000; ++i) logger.info("{}", std::string(100, 'x'));
  std::string text;
  while (text.find("heard") == std::string::npos) {
    pollfd readable{reader.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&readable, 1, 60'000), 1);
    text += ReadAll(reader.get());
    logger.info("heard");
  }
  EXPECT_THAT(text, HasSubstr("log lines were lost"));
}

TEST(StderrSinkTest, ALineThatWasCutGetsAnEnd) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  ASSERT_EQ(::fcntl(read_end.get(), F_SETFL, O_NONBLOCK), 0);
  spdlog::logger logger("test", std::make_shared<StderrSink>(write_end.get()));
  logger.set_pattern("%v");
  logger.info("{}", std::string(1 << 20, 'x'));
  const std::string cut = ReadAll(read_end.get());
  ASSERT_LT(cut.size(), size_t{1} << 20);
  logger.info("whole");
  EXPECT_THAT(ReadAll(read_end.get()), AllOf(StartsWith("\n1 log lines were lost"), EndsWith("\nwhole\n")));
}

}  // namespace
}  // namespace pinfeed
