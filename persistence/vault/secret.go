package vault

import (
	"fmt"
	"io"

	"github.com/rs/zerolog"
)

const redacted = "[redacted]"

// hidden makes the type that embeds it print, log and marshal as "[redacted]".
type hidden struct{}

// Secret is text or bytes that must not be shown: it prints, logs and marshals as
// "[redacted]". Only Reveal returns its content.
type Secret struct {
	hidden
	content []byte
}

// NewSecret takes ownership of content.
func NewSecret(content []byte) Secret { return Secret{content: content} }

// Reveal returns the content, which the caller must not change, log or keep.
func (s Secret) Reveal() []byte { return s.content }

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return len(s.content) == 0 }

// Secret32 is a key of 32 bytes. Like a Secret it cannot be printed.
type Secret32 struct {
	hidden
	key [32]byte
}

// NewSecret32 returns the key with these bytes.
func NewSecret32(key [32]byte) Secret32 { return Secret32{key: key} }

// Reveal returns the bytes.
func (s Secret32) Reveal() [32]byte { return s.key }

// String returns "[redacted]".
func (hidden) String() string { return redacted }

// GoString returns "[redacted]".
func (hidden) GoString() string { return redacted }

// Format writes "[redacted]" for every verb.
func (hidden) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText returns "[redacted]".
func (hidden) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON returns "[redacted]".
func (hidden) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalZerologObject logs "[redacted]".
func (hidden) MarshalZerologObject(e *zerolog.Event) { e.Str("secret", redacted) }
