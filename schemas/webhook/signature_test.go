package webhook

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

var noon = time.Unix(1_700_000_000, 0)

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body   = `{"id":"1","type":"webhook.test","data":{"café":"☕"}}`
	// golden was computed by openssl dgst -sha256 -hmac over "<t>.<body>".
	golden = "5c919f1c07ca5cdd983861cfd554005d8492677901dcb4c16d13062f1bb22ce7"
)

func TestSignIsWhatOthersCompute(t *testing.T) {
	want := "t=1700000000,v1=" + golden
	if got := Sign(secret, noon, []byte(body)); got != want {
		t.Errorf("signed %s, want %s", got, want)
	}
	if err := Verify(secret, want, []byte(body), noon); err != nil {
		t.Errorf("verify: %v", err)
	}
}

func TestVerify(t *testing.T) {
	good := Sign(secret, noon, []byte(body))
	_, sum, _ := strings.Cut(good, ",v1=")
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	signed := func(at int64) string {
		return fmt.Sprintf("t=%d,v1=%s", at, hex.EncodeToString(mac(secret, fmt.Sprint(at), []byte(body))))
	}
	for name, c := range map[string]struct {
		secret, header, body string
		now                  time.Time
		want                 error
	}{
		"good":                          {secret, good, body, noon, nil},
		"at the edge, late":             {secret, good, body, at(ReplayWindow), nil},
		"at the edge, early":            {secret, good, body, at(-ReplayWindow), nil},
		"one past it, late":             {secret, good, body, at(ReplayWindow + time.Second), ErrStaleTimestamp},
		"one past it, early":            {secret, good, body, at(-ReplayWindow - time.Second), ErrStaleTimestamp},
		"stale comes before mismatch":   {"other", good, body, at(time.Hour), ErrStaleTimestamp},
		"malformed comes before stale":  {secret, "t=1,v1=zz", body, noon, ErrMalformedHeader},
		"other secret":                  {"whsec_other", good, body, noon, ErrSignatureMismatch},
		"other body":                    {secret, good, body + " ", noon, ErrSignatureMismatch},
		"other time under the same sum": {secret, "t=1700000001,v1=" + sum, body, noon, ErrSignatureMismatch},
		"empty":                         {secret, "", body, noon, ErrMalformedHeader},
		"no time":                       {secret, "v1=" + sum, body, noon, ErrMalformedHeader},
		"no sum":                        {secret, "t=1700000000", body, noon, ErrMalformedHeader},
		"two times":                     {secret, "t=1700000000,t=1700000000,v1=" + sum, body, noon, ErrMalformedHeader},
		"short sum":                     {secret, "t=1700000000,v1=" + sum[:62], body, noon, ErrMalformedHeader},
		"upper case":                    {secret, "t=1700000000,v1=" + strings.ToUpper(sum), body, noon, ErrMalformedHeader},
		"time with a sign":              {secret, "t=+1700000000,v1=" + sum, body, noon, ErrMalformedHeader},
		"time with a nought":            {secret, "t=01700000000,v1=" + sum, body, noon, ErrMalformedHeader},
		"time beyond its range":         {secret, "t=99999999999999999999,v1=" + sum, body, noon, ErrMalformedHeader},
		"the last time there is":        {secret, signed(math.MaxInt64), body, noon, ErrStaleTimestamp},
		"the first time there is":       {secret, signed(math.MinInt64), body, noon, ErrStaleTimestamp},
		"a part without a value":        {secret, good + ",x", body, noon, ErrMalformedHeader},
		"a part of a later version":     {secret, good + ",v2=abc", body, noon, nil},
		"two sums, the second fits":     {secret, "t=1700000000,v1=" + strings.Repeat("00", 32) + ",v1=" + sum, body, noon, nil},
		"two sums, the first fits":      {secret, good + ",v1=" + strings.Repeat("00", 32), body, noon, nil},
		"spaces after the comma":        {secret, "t=1700000000, v1=" + sum, body, noon, nil},
		"an old scheme alone":           {secret, "t=1700000000,v0=" + sum, body, noon, ErrMalformedHeader},
	} {
		if err := Verify(c.secret, c.header, []byte(c.body), c.now); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(Sign(secret, noon, []byte(body)), []byte(body))
	f.Add("t=,v1=", []byte{})
	f.Fuzz(func(t *testing.T, header string, b []byte) {
		if err := Verify("another secret", header, b, noon); err == nil {
			t.Errorf("accepted %q", header)
		}
	})
}

func TestCatalogAndWhoHears(t *testing.T) {
	many := make([]Type, MostTypes+1)
	for name, c := range map[string]struct {
		types []Type
		ok    bool
	}{
		"one":           {[]Type{RunCompleted}, true},
		"all":           {[]Type{All}, true},
		"nine":          {Catalog()[:9], true},
		"none":          {nil, false},
		"too many":      {many, false},
		"unknown":       {[]Type{"run.started"}, false},
		"all and more":  {[]Type{All, RunFailed}, false},
		"more and all":  {[]Type{RunFailed, All}, false},
		"the same type": {[]Type{RunFailed, RunFailed}, false},
	} {
		if why := Check(c.types); (why == "") != c.ok {
			t.Errorf("%s: %q", name, why)
		}
	}
	for _, of := range Catalog()[:9] {
		if !Hears([]Type{All}, of) {
			t.Errorf("* does not hear %s", of)
		}
		if Hears([]Type{RunFailed}, of) != (of == RunFailed || of == Test) {
			t.Errorf("run.failed and %s", of)
		}
	}
}

func TestPauses(t *testing.T) {
	want := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second}
	for n := 1; n <= len(want); n++ {
		if d, ok := Pause(n); !ok || d != want[n-1] {
			t.Errorf("after attempt %d: %v %v, want %v", n, d, ok, want[n-1])
		}
	}
	for _, n := range []int{-1, 0, Attempts, Attempts + 1} {
		if _, ok := Pause(n); ok {
			t.Errorf("there is an attempt after %d", n)
		}
	}
}
