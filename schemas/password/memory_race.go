//go:build race

package password

// The race detector keeps several bytes for each byte of memory: with it, tests of logins would
// take gigabytes. It is never part of a release.
const memoryKiB = 1 << 10
