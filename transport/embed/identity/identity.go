package identity

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"
)

// maxToken limits the size of a token in bytes (open-parts.md, Embed).
const maxToken = 8 << 10

// Reason is why a token is refused (service.md, Authentication, Embed).
type Reason string

// The reasons.
const (
	Malformed   Reason = "malformed"
	WrongAlg    Reason = "alg"
	Signature   Reason = "signature"
	Expired     Reason = "expired"
	BadClaims   Reason = "claims"
	ExpTooFar   Reason = "exp_too_far"
	IatInFuture Reason = "iat_in_future"
	NotYetValid Reason = "not_yet_valid"
)

// Error is the refusal of a token.
type Error struct {
	Reason Reason
	Detail string // a sentence for the token's author, used as a problem's detail; it quotes nothing of the token
}

// Error returns the detail.
func (e *Error) Error() string { return e.Detail }

// Claims are the claims of a token about a visitor.
type Claims struct {
	Subject           string // sub, which is the external_id of the end user
	Name, Email       string
	HasName, HasEmail bool            // whether the token has these claims; they may be empty
	Meta              json.RawMessage // the object as sent, without white space; nil if the token has none
	Groups            []string        // the array meta.groups; nil if there is no such array
}

// Verify returns the claims of a token that was signed with secret and is valid at now. The
// error is an *Error, see the package comment.
func Verify(token string, secret []byte, now time.Time) (Claims, error) {
	raw, refused := verify(token, secret)
	if refused != nil {
		return Claims{}, refused
	}
	c, refused := read(raw, now)
	if refused != nil {
		return Claims{}, refused
	}
	return c, nil
}

// verify returns the payload of a token that was signed with secret.
func verify(token string, secret []byte) ([]byte, *Error) {
	if len(token) > maxToken {
		return nil, malformed("The token is longer than 8,192 bytes.")
	}
	var parts, decoded [3][]byte
	var err error
	if parts[0], parts[1], parts[2], err = jws.SplitCompactString(token); err != nil {
		return nil, malformed("The token is not three parts joined by dots: header, payload, signature.")
	}
	for i, part := range parts {
		decoded[i], err = base64.RawURLEncoding.Strict().AppendDecode(nil, part)
		if err != nil || bytes.ContainsAny(part, "\r\n") { // Go's decoder ignores line breaks
			return nil, malformed("A part of the token is not strict base64url without padding.")
		}
	}
	if len(parts[1]) == 0 {
		return nil, malformed("The token has no payload.")
	}
	if refused := header(decoded[0]); refused != nil {
		return nil, refused
	}
	// Verify the text as received: jws.Verify would encode the header anew.
	text := []byte(token[:len(parts[0])+1+len(parts[1])])
	if err := hs256.Verify(text, decoded[2], secret); err != nil {
		return nil, &Error{Signature, "The token was not signed with the embed key's current identity secret."}
	}
	return decoded[1], nil
}

// hs256 refuses an empty secret.
var hs256 = func() jws.Verifier {
	v, err := jws.NewVerifier(jwa.HS256)
	if err != nil {
		panic(err) // jwx knows HS256
	}
	return v
}()

// foreign are the header members that name a key or change the token's meaning. There is only
// one key, and it is passed in.
var foreign = []string{"jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256", "crit", "b64", "zip", "enc"}

// header checks a header before the signature is verified. jwx is more lenient: it accepts a
// member given twice, and keys in the header.
func header(b []byte) *Error {
	members, err := object(b)
	if err != nil {
		return malformed("The token's header is not a JSON object with each member once.")
	}
	for _, name := range foreign {
		if _, ok := members[name]; ok {
			return malformed("The token's header may not hold " + name + ".")
		}
	}
	for _, name := range []string{"typ", "cty", "kid"} {
		raw, given := members[name]
		if s, ok := text(raw); given && (!ok || name == "typ" && !strings.EqualFold(s, "JWT")) {
			return malformed("The token's header has a " + name + " that no identity token has.")
		}
	}
	if alg, ok := text(members["alg"]); !ok || alg != "HS256" {
		return &Error{WrongAlg, "The token's alg must be HS256."}
	}
	return nil
}

func malformed(detail string) *Error { return &Error{Malformed, detail} }
