package identity

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// How far in the future a token's times may lie (service.md, Authentication, Embed).
const (
	maxExp = 24 * time.Hour
	maxIat = 5 * time.Minute
	maxNbf = time.Minute
)

// Maximum lengths of claims, in characters. name and email are bounded as in PATCH
// /v1/end-users/{id}, sub as an external_id.
const (
	maxSub   = 255
	maxName  = 120
	maxEmail = 320
	maxGroup = 255
	maxMeta  = 16 // members
)

// read validates the payload of a token whose signature was verified.
func read(payload []byte, now time.Time) (Claims, *Error) {
	members, err := object(payload)
	switch {
	case errors.Is(err, errNoJSON):
		return Claims{}, malformed("The token's payload is not JSON.")
	case err != nil:
		return Claims{}, bad("The token's payload " + err.Error() + ".")
	}
	exp, ok := date(members["exp"])
	if !ok {
		return Claims{}, bad("The claim exp is required: a number of seconds since 1970.")
	}
	if !now.Before(exp) {
		return Claims{}, &Error{Expired, "The token has expired (exp): make a new one."}
	}

	c, refused := person(members)
	if refused != nil {
		return Claims{}, refused
	}
	iat, nbf := now, now
	for _, t := range []struct {
		name string
		at   *time.Time
	}{{"iat", &iat}, {"nbf", &nbf}} {
		raw, given := members[t.name]
		if !given {
			continue
		}
		if *t.at, ok = date(raw); !ok {
			return Claims{}, bad("The claim " + t.name + " must be a number of seconds since 1970.")
		}
	}

	switch {
	case exp.After(now.Add(maxExp)):
		return Claims{}, &Error{ExpTooFar, "The token expires more than 24 hours from now (exp)."}
	case iat.After(now.Add(maxIat)):
		return Claims{}, &Error{IatInFuture, "The token was issued more than 5 minutes from now (iat): check the clock of its issuer."}
	case nbf.After(now.Add(maxNbf)):
		return Claims{}, &Error{NotYetValid, "The token is not valid before a time more than 60 seconds from now (nbf)."}
	}
	return c, nil
}

// person reads the claims that describe the visitor.
func person(members map[string]json.RawMessage) (c Claims, refused *Error) {
	var ok bool
	if c.Subject, ok = line(members["sub"], maxSub); !ok || c.Subject == "" {
		return c, bad("The claim sub is required: a string of 1 to 255 characters without control characters.")
	}
	// Back ends send null for a user without a name.
	if raw, given := members["name"]; given && string(raw) != "null" {
		if c.Name, c.HasName = line(raw, maxName); !c.HasName {
			return c, bad("The claim name must be a string of up to 120 characters without control characters.")
		}
	}
	if raw, given := members["email"]; given && string(raw) != "null" {
		if c.Email, c.HasEmail = line(raw, maxEmail); !c.HasEmail {
			return c, bad("The claim email must be a string of up to 320 characters without control characters.")
		}
	}
	raw, given := members["meta"]
	if !given {
		return c, nil
	}
	var compact bytes.Buffer
	meta, err := object(raw)
	if err != nil || len(meta) > maxMeta || json.Compact(&compact, raw) != nil {
		return c, bad("The claim meta must be an object with up to 16 members.")
	}
	c.Meta = compact.Bytes()
	if c.Groups, ok = groups(meta["groups"]); !ok {
		return c, bad("The array meta.groups must hold strings of 1 to 255 characters without control characters.")
	}
	return c, nil
}

// groups returns the strings of an array; anything but an array is ignored.
func groups(raw json.RawMessage) (list []string, ok bool) {
	if len(raw) == 0 || raw[0] != '[' {
		return nil, true
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, false
	}
	list = make([]string, len(items))
	for i, item := range items {
		if list[i], ok = line(item, maxGroup); !ok || list[i] == "" {
			return nil, false
		}
	}
	return list, true
}

// line reads text of at most most characters without control characters.
func line(raw json.RawMessage, most int) (s string, ok bool) {
	if s, ok = text(raw); !ok || utf8.RuneCountInString(s) > most {
		return "", false
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return "", false
		}
	}
	return s, true
}

// endOfTime is past every limit: numbers beyond it are clamped to it.
var endOfTime = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// date reads a NumericDate (RFC 7519, 2): seconds since 1970, perhaps with a fraction.
func date(raw json.RawMessage) (time.Time, bool) {
	if len(raw) == 0 || raw[0] < '0' || raw[0] > '9' {
		return time.Time{}, false
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return time.Time{}, false
	}
	if f >= float64(endOfTime.Unix()) {
		return endOfTime, true
	}
	whole, rest := math.Modf(f)
	return time.Unix(int64(whole), int64(rest*1e9)), true
}

func bad(detail string) *Error { return &Error{BadClaims, detail} }
