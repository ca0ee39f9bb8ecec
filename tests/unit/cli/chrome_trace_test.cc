// SPDX-License-Identifier: Apache-2.0
#include "client/cli/chrome_trace.h"

#include <sstream>
#include <string>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

Json Written(const ChromeTrace& trace) {
  std::ostringstream out;
  trace.Write(out);
  return Json::parse(out.str());
}

// As protobuf prints them: 64-bit numbers are strings, unset fields are absent.
Json Span(const char* kind, const char* begin_ns, const char* end_ns) {
  return {{"kind", kind},     {"feed", "3"},   {"batch", "12"},  {"epoch", "1"}, {"begin_ns", begin_ns},
          {"end_ns", end_ns}, {"thread", 900}, {"session", "5"}, {"slot", 2},    {"samples", 8}};
}

std::vector<Json> Named(const Json& written, const std::string& name) {
  std::vector<Json> found;
  for (const Json& event : written["traceEvents"]) {
    if (event["name"] == name) found.push_back(event);
  }
  return found;
}

TEST(ChromeTraceTest, TimesKeepTheirNanoseconds) {
  ChromeTrace trace;
  trace.Add({{"spans", {Span("READ", "123456789012345", "123456789012399")}}});
  std::ostringstream out;
  trace.Write(out);
  EXPECT_THAT(out.str(), HasSubstr(R"("ts":123456789012.345,"dur":0.054)"));
}

TEST(ChromeTraceTest, SpansStandInTheRowsOfWhatDidThem) {
  ChromeTrace trace;
  trace.Add({{"daemon_pid", "77"},
             {"threads", {{{"thread", 900}, {"name", "copy-0"}}}},
             {"feeds", {{{"feed", "3"}, {"dataset", "/data"}}}},
             {"sessions", {{{"session", "5"}, {"feed", "3"}, {"client_name", "train.py"}, {"pid", "99"}}}},
             {"spans",
              {Span("COPY", "1000", "3000"), Span("LENT", "3000", "9000"), Span("PUBLISH", "3000", "3000"),
               Span("STEP", "4000", "8000"), Span("SOMETHING_NEW", "1", "2")}}});
  const Json written = Written(trace);
  const auto copies = Named(written, "copy 12");  // of the engine, and of the slot
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(copies[0]["tid"], 900);
  EXPECT_EQ(copies[1]["pid"], Named(written, "lent 12")[0]["pid"]);
  EXPECT_EQ(copies[1]["tid"], Named(written, "lent 12")[0]["tid"]);
  const Json publish = Named(written, "publish 12")[0];
  EXPECT_EQ(publish["ph"], "i");
  EXPECT_EQ(publish["tid"], Named(written, "step 12")[0]["tid"]);
  EXPECT_EQ(publish["args"]["epoch"], 1);
  std::vector<std::string> names;
  for (const char* what : {"process_name", "thread_name"}) {
    for (const Json& event : Named(written, what)) names.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(names, UnorderedElementsAre("pinfeedd (pid 77)", "feed 3: /data", "copy-0", "slot 2",
                                          "session 5: train.py (pid 99)"));
  EXPECT_EQ(trace.spans(), 4U);
}

TEST(ChromeTraceTest, NamesAreEscaped) {
  ChromeTrace trace;
  const std::string bad = "a\"b\\c\n\x01</script>\xff";
  trace.Add({{"feeds", {{{"feed", "3"}, {"dataset", bad}}}}, {"spans", {Span("LENT", "1", "2")}}});
  const Json written = Written(trace);
  const auto names = Named(written, "process_name");
  ASSERT_EQ(names.size(), 1U);
  EXPECT_EQ(names[0]["args"]["name"], "feed 3: a\"b\\c\n\x01</script>\xef\xbf\xbd");
}

TEST(ChromeTraceTest, NothingIsAFileToo) {
  const ChromeTrace trace;
  EXPECT_EQ(Written(trace)["traceEvents"].size(), 1U);
  EXPECT_EQ(trace.seconds(), 0);
}

TEST(ChromeTraceTest, EndsBeforeBeginsAreLeftOut) {
  ChromeTrace trace;
  trace.Add({{"spans", {Span("READ", "9", "2"), Json::object()}}, {"lost", "4"}, {"full", true}});
  EXPECT_EQ(trace.spans(), 0U);
  EXPECT_EQ(trace.lost(), 4U);
  EXPECT_TRUE(trace.full());
}

}  // namespace
}  // namespace pinfeed
