// Package apikey defines the format of an API key, svc_<key id>_<secret>_<checksum>, and of
// the publishable key of an embed key, svc_pk_<key id>_<secret>_<checksum>.
//
// The key id identifies the row, the secret is 32 random bytes of which only a hash is
// stored, and the checksum lets a mistyped or invented key be refused without a look-up. All
// three are base62, so that a double click selects the whole key. A key of one format never
// parses as the other: their lengths differ, and the checksum covers the prefix.
package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/big"
	"math/bits"
	"slices"

	"agentsvc/schemas/id"
)

const (
	scheme            = "svc_"
	publishableScheme = "svc_pk_"

	idLen     = 22 // base62 digits of 16 bytes
	secretLen = 43 // base62 digits of 32 bytes
	sumLen    = 6  // base62 digits of 4 bytes

	// Offsets and length of the part after the scheme.
	secretAt = idLen + 1
	sumAt    = secretAt + secretLen + 1
	restLen  = sumAt + sumLen

	// Len is the length of every API key.
	Len = len(scheme) + restLen
	// PublishableLen is the length of every publishable key.
	PublishableLen = len(publishableScheme) + restLen
	// prefixLen is how many digits of the id a shown prefix has.
	prefixLen = 8
)

// ErrMalformed is returned for text that is not a key of the expected format.
var ErrMalformed = errors.New("apikey: not a key")

// Hash is the stored hash of a secret. The secret has 256 random bits, so a fast hash is
// enough.
type Hash [sha256.Size]byte

// Equal compares in constant time.
func (h Hash) Equal(o Hash) bool { return subtle.ConstantTimeCompare(h[:], o[:]) == 1 }

// Mint returns a new key for the id.
func Mint(key id.KeyID) string { return mint(scheme, key.UUID) }

// MintPublishable returns a new publishable key for the id of an embed key.
func MintPublishable(key id.EmbedKeyID) string { return mint(publishableScheme, key.UUID) }

func mint(scheme string, key id.UUID) string {
	var secret [32]byte
	rand.Read(secret[:])
	b := make([]byte, 0, PublishableLen)
	b = append(b, scheme...)
	b = appendID(b, key)
	b = append(b, '_')
	b = appendBase62(b, new(big.Int).SetBytes(secret[:]), secretLen)
	sum := checksum(b)
	b = append(b, '_')
	b = appendBase62(b, new(big.Int).SetUint64(uint64(sum)), sumLen)
	return string(b)
}

// Parse returns the key id and the hash of the secret. It accepts exactly the possible
// results of Mint; the key need not exist.
func Parse(s string) (id.KeyID, Hash, error) {
	u, h, err := parse(scheme, s)
	return id.KeyID{UUID: u}, h, err
}

// ParsePublishable does the same for MintPublishable.
func ParsePublishable(s string) (id.EmbedKeyID, Hash, error) {
	u, h, err := parse(publishableScheme, s)
	return id.EmbedKeyID{UUID: u}, h, err
}

func parse(scheme, s string) (id.UUID, Hash, error) {
	at := len(scheme)
	if len(s) != at+restLen || s[:at] != scheme || s[at+secretAt-1] != '_' || s[at+sumAt-1] != '_' {
		return id.UUID{}, Hash{}, ErrMalformed
	}
	// The array is large enough for the copy: no allocation on the hot path.
	var b [PublishableLen]byte
	copy(b[:], s)
	sum, ok := decode64(b[at+sumAt : len(s)])
	if !ok || sum != uint64(checksum(b[:at+sumAt-1])) {
		return id.UUID{}, Hash{}, ErrMalformed
	}
	key, ok := decodeID(b[at : at+secretAt-1])
	if !ok {
		return id.UUID{}, Hash{}, ErrMalformed
	}
	secret := b[at+secretAt : at+sumAt-1]
	for _, c := range secret {
		if digit[c] < 0 {
			return id.UUID{}, Hash{}, ErrMalformed
		}
	}
	return key, sha256.Sum256(secret), nil
}

// Prefix returns the start of a key by which people recognise it: its scheme, and eight
// digits of its id.
func Prefix(key string) string { return prefix(scheme, key) }

// PublishablePrefix does the same for a publishable key.
func PublishablePrefix(key string) string { return prefix(publishableScheme, key) }

func prefix(scheme, key string) string { return key[:min(len(key), len(scheme)+prefixLen)] }

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

var digit = func() (d [256]int8) {
	for i := range d {
		d[i] = -1
	}
	for i, c := range []byte(alphabet) {
		d[c] = int8(i)
	}
	return d
}()

// checksum computes the IEEE CRC-32. The library's version makes its argument escape, and
// every request passes here.
func checksum(b []byte) uint32 {
	sum := ^uint32(0)
	for _, c := range b {
		sum = crc32.IEEETable[byte(sum)^c] ^ sum>>8
	}
	return ^sum
}

// appendID writes the id in reverse: its first bytes are the time, its last ones random, and
// the first digits of a key should distinguish keys.
func appendID(b []byte, key id.UUID) []byte {
	raw := key.Bytes16()
	slices.Reverse(raw[:])
	return appendBase62(b, new(big.Int).SetBytes(raw[:]), idLen)
}

func appendBase62(b []byte, n *big.Int, width int) []byte {
	at := len(b)
	b = append(b, make([]byte, width)...)
	base, rest := big.NewInt(int64(len(alphabet))), new(big.Int)
	for i := at + width - 1; i >= at; i-- {
		n.DivMod(n, base, rest)
		b[i] = alphabet[rest.Int64()]
	}
	return b
}

func decodeID(b []byte) (key id.UUID, ok bool) {
	var hi, lo uint64
	for _, c := range b {
		d := digit[c]
		if d < 0 {
			return id.UUID{}, false
		}
		over, shifted := bits.Mul64(hi, 62)
		carry, low := bits.Mul64(lo, 62)
		low, c0 := bits.Add64(low, uint64(d), 0)
		high, c1 := bits.Add64(shifted, carry, c0)
		if over != 0 || c1 != 0 {
			return id.UUID{}, false
		}
		hi, lo = high, low
	}
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], hi)
	binary.BigEndian.PutUint64(raw[8:], lo)
	slices.Reverse(raw[:])
	key.SetBytes16(raw)
	return key, true
}

func decode64(b []byte) (n uint64, ok bool) {
	for _, c := range b {
		d := digit[c]
		if d < 0 {
			return 0, false
		}
		n = n*62 + uint64(d)
	}
	return n, true
}
