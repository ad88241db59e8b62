// Package password hashes passwords with argon2id, in the PHC string format, so that
// parameters can be raised while old hashes still match.
package password

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
)

// Lengths of a password in characters (open-parts.md, Org nodes, users, sessions).
const (
	Min = 12
	Max = 200
)

// Parameters of new hashes: memoryKiB (64 MiB), 2 passes, 1 lane (about 50 ms of one core).
const (
	passes    = 2
	lanes     = 1
	saltBytes = 16
	keyBytes  = 32
)

// Upper limits for the parameters of a stored hash, so that no row can exhaust a node.
const (
	maxMemoryKiB = 1 << 20
	maxPasses    = 16
)

// Hash hashes a password with a new salt.
func Hash(password string) string {
	salt := make([]byte, saltBytes)
	rand.Read(salt)
	key := argon2.IDKey([]byte(password), salt, passes, memoryKiB, lanes, keyBytes)
	enc := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, memoryKiB, passes, lanes, enc.EncodeToString(salt), enc.EncodeToString(key))
}

// Matches reports whether hash was made from password. A malformed hash matches nothing.
func Matches(hash, password string) bool {
	part := strings.Split(hash, "$")
	if len(part) != 6 || part[0] != "" || part[1] != "argon2id" {
		return false
	}
	var version, memory, time, threads int
	if n, err := fmt.Sscanf(part[2], "v=%d", &version); n != 1 || err != nil || version != argon2.Version {
		return false
	}
	if n, err := fmt.Sscanf(part[3], "m=%d,t=%d,p=%d", &memory, &time, &threads); n != 3 || err != nil {
		return false
	}
	if memory < 8 || memory > maxMemoryKiB || time < 1 || time > maxPasses || threads < 1 || threads > 255 {
		return false
	}
	salt, err := base64.RawStdEncoding.DecodeString(part[4])
	if err != nil {
		return false
	}
	want, err := base64.RawStdEncoding.DecodeString(part[5])
	if err != nil || len(want) != keyBytes {
		return false
	}
	got := argon2.IDKey([]byte(password), salt, uint32(time), uint32(memory), uint8(threads), keyBytes)
	return subtle.ConstantTimeCompare(got, want) == 1
}
