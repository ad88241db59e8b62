package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"

	"agentsvc/schemas/id"
)

// The layout of a sealed value. The key name and the version are public and
// bound to both encryptions.
const (
	version   = 1
	nameSize  = 4
	nonceSize = 12
	tagSize   = 16
	keySize   = 32

	wrapAt    = 1 + nameSize
	wrappedAt = wrapAt + nonceSize
	bodyAt    = wrappedAt + keySize + tagSize
	dataAt    = bodyAt + nonceSize

	// Overhead is what sealing adds to a value's size.
	Overhead = dataAt + tagSize
)

// ErrOpen is answered for whatever does not open: another place, another master
// key, damage. It does not say which.
var ErrOpen = errors.New("the sealed value does not open")

// Sealed is an encrypted value as it stands in a bytea column.
type Sealed []byte

// String is "[sealed]".
func (Sealed) String() string { return "[sealed]" }

// AAD is the place a value belongs to.
type AAD struct {
	Tenant id.TenantID
	Table  string
	Row    string // the row's key within the tenant: an id's text, or several parts joined by /
	Column string
}

// append writes the place unambiguously: parts of varying length follow their
// length. Purpose keeps the two encryptions of a value apart.
func (a AAD) append(b []byte, purpose byte) []byte {
	b = append(b, version, purpose)
	b = append(b, a.Tenant.UUID[:]...)
	for _, part := range []string{a.Table, a.Row, a.Column} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	return b
}

const (
	forKey  = 'k'
	forData = 'd'
)

// Vault seals under one master key and opens under several. It is safe for
// concurrent use.
type Vault struct {
	masters []master // the current one first
}

type master struct {
	name [nameSize]byte // of the key, to find it among several
	aead cipher.AEAD
	root []byte // what other keys are derived from (HKDF-Extract)
}

// New makes a vault that seals under current and also opens what was sealed under
// previous keys.
func New(current Secret32, previous ...Secret32) *Vault {
	v := &Vault{}
	for _, key := range append([]Secret32{current}, previous...) {
		sum := sha256.Sum256(append([]byte("svc master key\x00"), key.key[:]...))
		v.masters = append(v.masters, master{[nameSize]byte(sum[:]), newGCM(key.key[:]), newRoot(key.key[:])})
	}
	return v
}

// Derive answers keys for one purpose, one of each master key: first the one to sign
// with, then those that what was signed under previous master keys is checked with. They
// are the same on every node, and those of two purposes say nothing of each other, nor of
// the master key (HKDF-SHA256, RFC 5869).
func (v *Vault) Derive(purpose string) []Secret32 {
	keys := make([]Secret32, len(v.masters))
	for i, m := range v.masters {
		key, err := hkdf.Expand(sha256.New, m.root, purpose, len(keys[i].key))
		if err != nil {
			panic(err) // 32 bytes are not too long
		}
		copy(keys[i].key[:], key)
	}
	return keys
}

func newRoot(key []byte) []byte {
	root, err := hkdf.Extract(sha256.New, key, []byte("svc derived keys"))
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	return root
}

// Names are those of the master keys, the one that is sealed under first. They say
// nothing of the keys.
func (v *Vault) Names() []string {
	names := make([]string, len(v.masters))
	for i, m := range v.masters {
		names[i] = hex.EncodeToString(m.name[:])
	}
	return names
}

func newGCM(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block has 16 bytes
	}
	return aead
}

// Seal encrypts plain for the place aad.
func (v *Vault) Seal(aad AAD, plain []byte) (Sealed, error) {
	m := &v.masters[0]
	// One draw serves both nonces and the data key, whose place in out is then
	// taken by its wrapped form.
	out := make([]byte, dataAt, Overhead+len(plain))
	if _, err := rand.Read(out[wrapAt:]); err != nil {
		return nil, err
	}
	out[0] = version
	copy(out[1:], m.name[:])
	var key [keySize]byte
	defer clear(key[:])
	copy(key[:], out[wrappedAt:])

	var place [256]byte
	m.aead.Seal(out[wrappedAt:wrappedAt], out[wrapAt:wrappedAt], key[:], aad.append(place[:0], forKey))
	return newGCM(key[:]).Seal(out, out[bodyAt:dataAt], plain, aad.append(place[:0], forData)), nil
}

// Open decrypts what was sealed for the place aad.
func (v *Vault) Open(aad AAD, s Sealed) ([]byte, error) {
	var key [keySize]byte
	defer clear(key[:])
	if _, err := v.unwrap(aad, s, &key); err != nil {
		return nil, err
	}
	var place [256]byte
	plain, err := newGCM(key[:]).Open(nil, s[bodyAt:dataAt], s[dataAt:], aad.append(place[:0], forData))
	if err != nil {
		return nil, ErrOpen
	}
	if plain == nil {
		plain = []byte{} // an empty value is not a missing one
	}
	return plain, nil
}

// Rewrap answers s with its data key wrapped by the current master key. changed
// is false, and s answered as it is, where that is so already.
func (v *Vault) Rewrap(aad AAD, s Sealed) (rewrapped Sealed, changed bool, err error) {
	var key [keySize]byte
	defer clear(key[:])
	used, err := v.unwrap(aad, s, &key)
	if err != nil {
		return nil, false, err
	}
	m := &v.masters[0]
	if used == m {
		return s, false, nil
	}
	out := slices.Clone(s)
	copy(out[1:], m.name[:])
	if _, err := rand.Read(out[wrapAt:wrappedAt]); err != nil {
		return nil, false, err
	}
	var place [256]byte
	m.aead.Seal(out[wrappedAt:wrappedAt], out[wrapAt:wrappedAt], key[:], aad.append(place[:0], forKey))
	return out, true, nil
}

// unwrap finds the master key of s and opens the data key with it.
func (v *Vault) unwrap(aad AAD, s Sealed, key *[keySize]byte) (*master, error) {
	if len(s) < Overhead || s[0] != version {
		return nil, ErrOpen
	}
	var place [256]byte
	bound := aad.append(place[:0], forKey)
	for i := range v.masters {
		m := &v.masters[i]
		if [nameSize]byte(s[1:wrapAt]) != m.name {
			continue
		}
		if _, err := m.aead.Open(key[:0], s[wrapAt:wrappedAt], s[wrappedAt:bodyAt], bound); err == nil {
			return m, nil
		}
	}
	return nil, ErrOpen
}
