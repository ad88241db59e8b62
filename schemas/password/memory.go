//go:build !race

package password

const memoryKiB = 64 << 10
