import assert from "node:assert/strict";
import test from "node:test";
import { dueTimes, parseCron } from "../src/lib/cron.ts";

const times = (cron, zone, after, n) => dueTimes(parseCron(cron), zone, Date.parse(after), n).map((t) => new Date(t).toISOString().replace(".000Z", "Z"));

// The table of schemas/schedule: what the page shows is what the service does.
const TABLE = [
  ["Sunday is 7", "0 9 * * 7", "UTC", "2026-11-21T12:00:00Z", ["2026-11-22T09:00:00Z", "2026-11-29T09:00:00Z"]],
  ["Sunday is 0", "0 9 * * 0", "UTC", "2026-11-21T12:00:00Z", ["2026-11-22T09:00:00Z", "2026-11-29T09:00:00Z"]],
  ["to Sunday", "0 9 * * sat-SUN", "UTC", "2026-11-20T12:00:00Z", ["2026-11-21T09:00:00Z", "2026-11-22T09:00:00Z", "2026-11-28T09:00:00Z"]],
  ["lists, steps, names", "10-30/10,45 8 1 jan,JUL *", "UTC", "2026-01-01T00:00:00Z", ["2026-01-01T08:10:00Z", "2026-01-01T08:20:00Z", "2026-01-01T08:30:00Z", "2026-01-01T08:45:00Z", "2026-07-01T08:10:00Z"]],
  ["a step from a value", "50/5 8 * * *", "UTC", "2026-01-01T00:00:00Z", ["2026-01-01T08:50:00Z", "2026-01-01T08:55:00Z", "2026-01-02T08:50:00Z"]],
  ["a day or a weekday", "0 0 13 * FRI", "UTC", "2026-11-01T00:00:00Z", ["2026-11-06T00:00:00Z", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"]],
  ["eight years", "0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", ["2104-02-29T00:00:00Z"]],
  ["every minute", "* * * * *", "UTC", "2026-11-21T12:00:59Z", ["2026-11-21T12:01:00Z", "2026-11-21T12:02:00Z"]],
  ["not the moment itself", "0 12 * * *", "UTC", "2026-11-21T12:00:00Z", ["2026-11-22T12:00:00Z"]],
  ["weekdays at nine in Berlin", "0 9 * * MON-FRI", "Europe/Berlin", "2026-11-20T08:00:00Z", ["2026-11-23T08:00:00Z", "2026-11-24T08:00:00Z"]],
  ["spring: a skipped time comes due after the gap", "30 2 * * *", "America/New_York", "2026-03-07T07:30:00Z", ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]],
  ["spring: two skipped times and the first after them are one", "0,30 2,3 * * *", "America/New_York", "2026-03-08T06:59:59Z", ["2026-03-08T07:00:00Z", "2026-03-08T07:30:00Z", "2026-03-09T06:00:00Z"]],
  ["spring: every minute", "* * * * *", "America/New_York", "2026-03-08T06:58:00Z", ["2026-03-08T06:59:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:01:00Z"]],
  ["autumn: what is shown twice comes due once", "30 1 * * *", "America/New_York", "2026-10-31T16:00:00Z", ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]],
  ["autumn: asked between the two", "30 1 * * *", "America/New_York", "2026-11-01T06:10:00Z", ["2026-11-02T06:30:00Z"]],
  ["autumn: every hour comes due once in the hour shown twice", "30 * * * *", "America/New_York", "2026-11-01T04:45:00Z", ["2026-11-01T05:30:00Z", "2026-11-01T07:30:00Z", "2026-11-01T08:30:00Z"]],
  ["autumn: every minute, asked between the two", "* * * * *", "America/New_York", "2026-11-01T06:10:00Z", ["2026-11-01T07:00:00Z", "2026-11-01T07:01:00Z"]],
  ["a gap of half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T01:30:00Z", ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]],
  ["half an hour twice", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T01:00:00Z", ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]],
  ["a day that was not", "0 12 30 12 *", "Pacific/Apia", "2011-12-01T10:00:00Z", ["2011-12-30T10:00:00Z"]],
  ["midnight that was not", "0 0 * * *", "America/Santiago", "2026-09-05T16:00:00Z", ["2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"]],
];

for (const [name, cron, zone, after, want] of TABLE) test("due times: " + name, () => assert.deepEqual(times(cron, zone, after, want.length), want));

test("what is wrong is told with its field", () => {
  for (const [cron, want] of [
    ["60 * * * *", "minute: 60 is not between 0 and 59"],
    ["0 x * * *", 'hour: "x" is not a number'],
    ["0 0 0 * *", "day of month: 0 is not between 1 and 31"],
    ["0 0 * * FOO", 'day of week: "FOO" is neither a number nor a name such as SUN'],
    ["1,,2 * * * *", "minute: an item of the list is empty"],
    ["5-1 * * * *", 'minute: the range "5-1" ends before it begins'],
    ["*/0 * * * *", 'minute: the step "0" must be a whole number from 1 on'],
    ["* * * *", "expected five fields (minute, hour, day of month, month, day of week), got 4"],
    ["", "expected five fields (minute, hour, day of month, month, day of week), got 0"],
  ])
    assert.throws(() => parseCron(cron), { message: want });
  for (const cron of ["@daily", "TZ=UTC 0 0 * * *", "+1 * * * *", "1- * * * *", "1-2-3 * * * *", "*/2/3 * * * *", "0 0 L * *"]) assert.throws(() => parseCron(cron), cron);
});

test("a schedule that never comes due has no times, and an unknown zone is told", () => {
  assert.deepEqual(times("0 0 31 2 *", "UTC", "2026-01-01T00:00:00Z", 3), []);
  assert.throws(() => times("* * * * *", "Europe/Atlantis", "2026-01-01T00:00:00Z", 1));
});
