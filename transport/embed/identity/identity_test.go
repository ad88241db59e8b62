package identity

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"
	"github.com/lestrrat-go/jwx/v2/jwt"
)

var (
	now    = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	secret = []byte("whsec-like secret of some 32 bytes")
)

const plain = `{"alg":"HS256","typ":"JWT"}`

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// mac signs by hand.
func mac(h func() hash.Hash, key []byte, text string) string {
	m := hmac.New(h, key)
	m.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

func signed(header, payload string) string {
	text := b64(header) + "." + b64(payload)
	return text + "." + mac(sha256.New, secret, text)
}

// in is a NumericDate so far from now.
func in(d time.Duration) string { return strconv.FormatInt(now.Add(d).Unix(), 10) }

// with is a token of a person, and these further claims.
func with(claims string) string {
	if claims != "" {
		claims = "," + claims
	}
	return signed(plain, `{"sub":"u1","exp":`+in(time.Hour)+claims+`}`)
}

func payload(claims string) string { return signed(plain, claims) }

// reason is why a token is refused, "" if it is not.
func reason(t *testing.T, token string, key []byte, at time.Time) Reason {
	t.Helper()
	c, err := Verify(token, key, at)
	if err == nil {
		return ""
	}
	var refused *Error
	if !errors.As(err, &refused) || refused.Detail == "" || !reflect.DeepEqual(c, Claims{}) {
		t.Fatalf("refused by %#v, with the claims %+v", err, c)
	}
	return refused.Reason
}

const ok = Reason("")

// service.md, Authentication, Embed; open-parts.md, Embed and End users; security.md, Embed.
func TestVerify(t *testing.T) {
	year := strings.Repeat("x", 300)
	for _, c := range []struct {
		sentence, token string
		want            Reason
	}{
		{"a JWT with algorithm HS256 is accepted", with(``), ok},
		{"whatever the order and the form of its header", signed(" {\r\n \"typ\" : \"JWT\",\t\"kid\":\"k1\",\n\"alg\":\"HS256\" } ", `{"sub":"u1","exp":`+in(time.Hour)+`}`), ok},
		{"a typ is not needed", signed(`{"alg":"HS256"}`, `{"sub":"u1","exp":`+in(time.Hour)+`}`), ok},
		{"typ is compared without case", signed(`{"alg":"HS256","typ":"jwt"}`, `{"sub":"u1","exp":`+in(time.Hour)+`}`), ok},
		{"another typ is refused", signed(`{"alg":"HS256","typ":"at+jwt"}`, `{"sub":"u1","exp":`+in(time.Hour)+`}`), Malformed},
		{"unknown claims are not looked at", with(`"iss":1,"aud":["x"],"jti":null,"EXP":"x","Sub":5`), ok},
		{"unknown header members are not looked at", signed(`{"alg":"HS256","ver":[1]}`, `{"sub":"u1","exp":`+in(time.Hour)+`}`), ok},
		{"white space in the payload", payload(" { \"sub\" : \"u1\" ,\n\"exp\" : " + in(time.Hour) + " , \"nbf\" : 1 } \r\n"), ok},

		{"sub is required", payload(`{"exp":` + in(time.Hour) + `}`), BadClaims},
		{"sub is not empty", payload(`{"sub":"","exp":` + in(time.Hour) + `}`), BadClaims},
		{"sub is a string, not a number", payload(`{"sub":5,"exp":` + in(time.Hour) + `}`), BadClaims},
		{"sub is a string, not null", payload(`{"sub":null,"exp":` + in(time.Hour) + `}`), BadClaims},
		{"sub is a string, not a list", payload(`{"sub":["u1"],"exp":` + in(time.Hour) + `}`), BadClaims},
		{"sub has 1 to 255 characters: 255", payload(`{"sub":"` + strings.Repeat("ü", 255) + `","exp":` + in(time.Hour) + `}`), ok},
		{"sub has 1 to 255 characters: 256", payload(`{"sub":"` + strings.Repeat("u", 256) + `","exp":` + in(time.Hour) + `}`), BadClaims},
		{"sub holds no control characters", payload(`{"sub":"u\n1","exp":` + in(time.Hour) + `}`), BadClaims},
		{"sub holds no C1 control characters", payload(`{"sub":"u\u00851","exp":` + in(time.Hour) + `}`), BadClaims},

		{"exp is required", payload(`{"sub":"u1"}`), BadClaims},
		{"a string exp is refused", payload(`{"sub":"u1","exp":"` + in(time.Hour) + `"}`), BadClaims},
		{"a negative exp is refused", payload(`{"sub":"u1","exp":-5}`), BadClaims},
		{"exp is a number, not null", payload(`{"sub":"u1","exp":null}`), BadClaims},
		{"exp is a number, not a list", payload(`{"sub":"u1","exp":[` + in(time.Hour) + `]}`), BadClaims},
		{"exp is a number, not true", payload(`{"sub":"u1","exp":true}`), BadClaims},
		{"exp is a number that can be held", payload(`{"sub":"u1","exp":1e999}`), BadClaims},
		{"exp may have a fraction", payload(`{"sub":"u1","exp":` + in(time.Hour) + `.75}`), ok},
		{"exp may have an exponent", payload(fmt.Sprintf(`{"sub":"u1","exp":%.9e}`, float64(now.Add(time.Hour).Unix()))), ok},
		{"exp a second ahead", payload(`{"sub":"u1","exp":` + in(time.Second) + `}`), ok},
		{"exp a fraction ahead", payload(`{"sub":"u1","exp":` + in(0) + `.25}`), ok},
		{"exp now has expired", payload(`{"sub":"u1","exp":` + in(0) + `}`), Expired},
		{"exp a fraction ago has expired", payload(`{"sub":"u1","exp":` + in(-time.Second) + `.75}`), Expired},
		{"exp a second ago has expired", payload(`{"sub":"u1","exp":` + in(-time.Second) + `}`), Expired},
		{"exp in 1970 has expired", payload(`{"sub":"u1","exp":0}`), Expired},
		{"exp at most 24 h ahead: exactly", payload(`{"sub":"u1","exp":` + in(24*time.Hour) + `}`), ok},
		{"exp at most 24 h ahead: a fraction more", payload(`{"sub":"u1","exp":` + in(24*time.Hour) + `.001}`), ExpTooFar},
		{"exp at most 24 h ahead: a second more", payload(`{"sub":"u1","exp":` + in(24*time.Hour+time.Second) + `}`), ExpTooFar},
		{"exp in milliseconds", payload(`{"sub":"u1","exp":` + in(time.Hour) + `000}`), ExpTooFar},
		{"exp at the end of all numbers", payload(`{"sub":"u1","exp":1.7e308}`), ExpTooFar},
		{"exp past the integers of 64 bits", payload(`{"sub":"u1","exp":9223372036854775808}`), ExpTooFar},

		{"iat at most 5 min ahead: exactly", with(`"iat":` + in(5*time.Minute)), ok},
		{"iat at most 5 min ahead: a fraction more", with(`"iat":` + in(5*time.Minute) + `.001`), IatInFuture},
		{"iat at most 5 min ahead: a second more", with(`"iat":` + in(5*time.Minute+time.Second)), IatInFuture},
		{"iat long ago", with(`"iat":0`), ok},
		{"a string iat is refused", with(`"iat":"` + in(0) + `"`), BadClaims},
		{"a negative iat is refused", with(`"iat":-1`), BadClaims},
		{"iat is a number, not null", with(`"iat":null`), BadClaims},
		{"iat at the end of all numbers", with(`"iat":1e308`), IatInFuture},
		{"nbf at most 60 s ahead: exactly", with(`"nbf":` + in(time.Minute)), ok},
		{"nbf at most 60 s ahead: a fraction more", with(`"nbf":` + in(time.Minute) + `.001`), NotYetValid},
		{"nbf at most 60 s ahead: a second more", with(`"nbf":` + in(time.Minute+time.Second)), NotYetValid},
		{"nbf long ago", with(`"nbf":0.5`), ok},
		{"a string nbf is refused", with(`"nbf":"` + in(0) + `"`), BadClaims},
		{"a negative nbf is refused", with(`"nbf":-1`), BadClaims},
		{"nbf is a number, not null", with(`"nbf":null`), BadClaims},

		{"name is a string", with(`"name":5`), BadClaims},
		{"name of 120 characters", with(`"name":"` + strings.Repeat("é", 120) + `"`), ok},
		{"name of 121 characters", with(`"name":"` + strings.Repeat("e", 121) + `"`), BadClaims},
		{"name holds no control characters", with(`"name":"Ada\u001b[31m"`), BadClaims},
		{"name holds no U+0000", with(`"name":"Ada\u0000"`), BadClaims},
		{"name holds no DEL", with("\"name\":\"Ada\x7f\""), BadClaims},
		{"name holds no half of a surrogate pair", with(`"name":"\ud83d"`), BadClaims},
		{"name may hold a surrogate pair", with(`"name":"\ud83d\ude00"`), ok},
		{"a name that is null says nothing", with(`"name":null`), ok},
		{"email is a string", with(`"email":{}`), BadClaims},
		{"email of 320 characters", with(`"email":"` + strings.Repeat("e", 320) + `"`), ok},
		{"email of 321 characters", with(`"email":"` + strings.Repeat("e", 321) + `"`), BadClaims},
		{"email holds no control characters", with(`"email":"a@b\r\nBcc: c@d"`), BadClaims},
		{"an email that is null says nothing", with(`"email":null`), ok},

		{"meta at most 16 keys: 16", with(`"meta":` + members(16)), ok},
		{"meta at most 16 keys: 17", with(`"meta":` + members(17)), BadClaims},
		{"meta at most 16 keys: those within are not counted", with(`"meta":{"a":` + members(30) + `}`), ok},
		{"meta may be empty", with(`"meta":{}`), ok},
		{"non-object meta refused: a list", with(`"meta":[]`), BadClaims},
		{"non-object meta refused: a string", with(`"meta":"{}"`), BadClaims},
		{"non-object meta refused: a number", with(`"meta":1`), BadClaims},
		{"non-object meta refused: false", with(`"meta":false`), BadClaims},
		{"non-object meta refused: null", with(`"meta":null`), BadClaims},
		{"meta as deep as may be", with(`"meta":` + strings.Repeat(`{"a":`, maxDepth-1) + `1` + strings.Repeat(`}`, maxDepth-1)), ok},
		{"meta deeper", with(`"meta":` + strings.Repeat(`{"a":`, maxDepth) + `1` + strings.Repeat(`}`, maxDepth)), BadClaims},
		{"a number in meta that no double holds", with(`"meta":{"a":1e400}`), BadClaims},
		{"U+0000 in meta", with(`"meta":{"a":"\u0000"}`), BadClaims},
		{"an array meta.groups of strings", with(`"meta":{"groups":["gold","eu"]}`), ok},
		{"meta.groups that is no array is a member like others", with(`"meta":{"groups":"gold"}`), ok},
		{"an array meta.groups with a number", with(`"meta":{"groups":["gold",1]}`), BadClaims},
		{"an array meta.groups with null", with(`"meta":{"groups":[null]}`), BadClaims},
		{"an array meta.groups with an empty name", with(`"meta":{"groups":[""]}`), BadClaims},
		{"an array meta.groups with a long name", with(`"meta":{"groups":["` + year + `"]}`), BadClaims},

		{"duplicate claims are refused: sub", with(`"sub":"u1"`), BadClaims},
		{"duplicate claims are refused: exp", with(`"exp":` + in(time.Hour)), BadClaims},
		{"duplicate claims are refused: in other letters", with(`"s\u0075b":"u2"`), BadClaims},
		{"duplicate claims are refused: one that nobody looks at", with(`"iss":"a","iss":"b"`), BadClaims},
		{"duplicate claims are refused: in meta", with(`"meta":{"a":1,"a":1}`), BadClaims},
		{"duplicate claims are refused: deep in meta", with(`"meta":{"a":[{"b":1,"b":2}]}`), BadClaims},
		{"the same name in two objects is no duplicate", with(`"meta":{"a":[{"b":1},{"b":2}],"sub":"u9"}`), ok},

		{"the payload is an object: a list", payload(`[]`), BadClaims},
		{"the payload is an object: null", payload(`null`), BadClaims},
		{"the payload is an object: a string", payload(`"u1"`), BadClaims},
		{"the payload is JSON", payload(`sub=u1`), Malformed},
		{"the payload is one JSON value", payload(`{"sub":"u1","exp":` + in(time.Hour) + `}{}`), Malformed},
		{"the payload is JSON without a byte order mark", payload("\ufeff" + `{"sub":"u1","exp":` + in(time.Hour) + `}`), Malformed},
		{"the payload is UTF-8", payload(`{"sub":"u1` + "\xff" + `","exp":` + in(time.Hour) + `}`), Malformed},
		{"the payload is JSON without comments", payload(`{"sub":"u1","exp":` + in(time.Hour) + `/**/}`), Malformed},
		{"the payload is JSON without a comma too much", payload(`{"sub":"u1","exp":` + in(time.Hour) + `,}`), Malformed},
		{"exp is written as JSON writes numbers", payload(`{"sub":"u1","exp":0` + in(time.Hour) + `}`), Malformed},

		{"an identity JWT over 8 KiB is malformed: exactly 8 KiB", sized(8 << 10), ok},
		{"an identity JWT over 8 KiB is malformed: a byte more", sized(8<<10 + 1), Malformed},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			if got := reason(t, c.token, secret, now); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func members(n int) string {
	var b []string
	for i := range n {
		b = append(b, fmt.Sprintf(`"k%d":%d`, i, i))
	}
	return "{" + strings.Join(b, ",") + "}"
}

// sized is a token of so many bytes.
func sized(n int) string {
	for header := range 4 {
		for filler := n * 3 / 4; filler > 0; filler-- {
			h := `{"alg":"HS256","kid":"` + strings.Repeat("k", header) + `"}`
			p := `{"sub":"u1","exp":` + in(time.Hour) + `,"meta":{"f":"` + strings.Repeat("f", filler) + `"}}`
			switch size := base64.RawURLEncoding.EncodedLen(len(h)) + 1 + base64.RawURLEncoding.EncodedLen(len(p)) + 1 + 43; {
			case size == n:
				return signed(h, p)
			case size < n:
				filler = 0
			}
		}
	}
	panic("no token has that many bytes")
}

// security.md: "reasons in the order malformed, alg, signature, then the claims", and these in the
// order of the package's comment: a token with all faults has the first one; each
// that is mended shows the next.
func TestTheOrderOfTheReasons(t *testing.T) {
	exp, far := in(-time.Hour), in(48*time.Hour)
	bad := func(header, payload string) string { return b64(header) + "." + b64(payload) + "." + b64("forged") }
	for _, c := range []struct {
		token string
		want  Reason
	}{
		{bad(`{"alg":"none","jku":"x"}`, `x`), Malformed},
		{bad(`{"alg":"none"}`, `x`), WrongAlg},
		{bad(plain, `x`), Signature},
		{signed(plain, `x`), Malformed},
		{signed(plain, `{"sub":1,"sub":1,"exp":`+exp+`}`), BadClaims},
		{signed(plain, `{"sub":1,"exp":`+exp+`,"iat":`+far+`,"nbf":`+far+`}`), Expired},
		{signed(plain, `{"sub":1,"exp":`+far+`,"iat":`+far+`,"nbf":`+far+`}`), BadClaims},
		{signed(plain, `{"sub":"u1","exp":`+far+`,"iat":`+far+`,"nbf":"x"}`), BadClaims},
		{signed(plain, `{"sub":"u1","exp":`+far+`,"iat":`+far+`,"nbf":`+far+`}`), ExpTooFar},
		{signed(plain, `{"sub":"u1","exp":`+in(time.Hour)+`,"iat":`+far+`,"nbf":`+far+`}`), IatInFuture},
		{signed(plain, `{"sub":"u1","exp":`+in(time.Hour)+`,"iat":`+in(0)+`,"nbf":`+far+`}`), NotYetValid},
		{signed(plain, `{"sub":"u1","exp":`+in(time.Hour)+`,"iat":`+in(0)+`,"nbf":`+in(0)+`}`), ok},
	} {
		if got := reason(t, c.token, secret, now); got != c.want {
			t.Errorf("%s: %q, want %q", c.token, got, c.want)
		}
	}
}

func TestClaimsAreReadAsTheyWereSent(t *testing.T) {
	for _, c := range []struct {
		claims string
		want   Claims
	}{
		{``, Claims{Subject: "u1"}},
		{`"name":"Ada Lovelace","email":"ada@example.com"`, Claims{Subject: "u1", Name: "Ada Lovelace", HasName: true, Email: "ada@example.com", HasEmail: true}},
		{`"name":"","email":""`, Claims{Subject: "u1", HasName: true, HasEmail: true}},
		{`"name":null,"email":null`, Claims{Subject: "u1"}},
		{`"name":"\u0041\ud83d\ude00 <b>\"\\"`, Claims{Subject: "u1", Name: `A😀 <b>"\`, HasName: true}},
		{`"Name":"x","NAME":"y"`, Claims{Subject: "u1"}},
		{`"meta":{}`, Claims{Subject: "u1", Meta: []byte(`{}`)}},
		{`"meta": { "z" : 12345678901234567890, "a" : [ 1.50, "<&>" ] }`, Claims{Subject: "u1", Meta: []byte(`{"z":12345678901234567890,"a":[1.50,"<&>"]}`)}},
		{`"meta":{"groups":[]}`, Claims{Subject: "u1", Meta: []byte(`{"groups":[]}`), Groups: []string{}}},
		{`"meta":{"groups":["gold","g\u00fcte","gold"],"plan":"x"}`,
			Claims{Subject: "u1", Meta: []byte(`{"groups":["gold","g\u00fcte","gold"],"plan":"x"}`), Groups: []string{"gold", "güte", "gold"}}},
		{`"meta":{"groups":"gold"}`, Claims{Subject: "u1", Meta: []byte(`{"groups":"gold"}`)}},
		{`"groups":["gold"]`, Claims{Subject: "u1"}},
	} {
		if got, err := Verify(with(c.claims), secret, now); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", c.claims, got, err)
		}
	}
}

// A token that was not signed with the secret, or is not in the one form, is never accepted.
func TestForgedTokens(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	person := `{"sub":"u1","exp":` + in(time.Hour) + `}`
	text := func(header string) string { return b64(header) + "." + b64(person) }
	by := func(header string, h func() hash.Hash) string {
		return text(header) + "." + mac(h, secret, text(header))
	}
	rs := func() string {
		s := text(`{"alg":"RS256","typ":"JWT"}`)
		sum := sha256.Sum256([]byte(s))
		sig, err := rsa.SignPKCS1v15(rand.Reader, rsaKey, crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return s + "." + base64.RawURLEncoding.EncodeToString(sig)
	}
	good := with(``)
	part := strings.Split(good, ".")
	join := func(p ...string) string { return strings.Join(p, ".") }
	other := payload(`{"sub":"u2","exp":` + in(time.Hour) + `}`)
	std := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	loose := func(s string) string { // the same bytes, with bits behind them that no byte takes
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		return s[:len(s)-1] + string(alphabet[strings.IndexByte(alphabet, s[len(s)-1])|1])
	}
	// A payload whose base64url has characters that the standard alphabet writes otherwise.
	odd := payload(`{"sub":"u1","exp":` + in(time.Hour) + `,"name":"???>>>~~~"}`)
	if !strings.ContainsAny(strings.Split(odd, ".")[1], "-_") || reason(t, odd, secret, now) != ok {
		t.Fatal("the check of the alphabet is void")
	}

	for name, c := range map[string]struct {
		token string
		want  Reason
	}{
		"nothing":                       {"", Malformed},
		"a word":                        {"token", Malformed},
		"two dots":                      {"..", Malformed},
		"one part":                      {part[0], Malformed},
		"two parts":                     {join(part[0], part[1]), Malformed},
		"four parts":                    {join(good, "AA"), Malformed},
		"five parts, a JWE":             {join(b64(`{"alg":"dir","enc":"A256GCM"}`), "", b64("iv"), b64("text"), b64("tag")), Malformed},
		"a JWE's header on a JWS":       {by(`{"alg":"HS256","enc":"A256GCM"}`, sha256.New), Malformed},
		"no payload":                    {join(part[0], "", mac(sha256.New, secret, part[0]+".")), Malformed},
		"no payload, forged":            {join(part[0], "", part[2]), Malformed},
		"no header":                     {join("", part[1], mac(sha256.New, secret, "."+part[1])), Malformed},
		"a JWS in JSON":                 {`{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`, Malformed},
		"a nested JWT":                  {signed(`{"alg":"HS256","cty":"JWT"}`, good), Malformed},
		"a Bearer in front":             {"Bearer " + good, Malformed},
		"a blank in front":              {" " + good, Malformed},
		"a blank behind":                {good + " ", Malformed},
		"a line break behind":           {good + "\n", Malformed},
		"a carriage return behind":      {good + "\r", Malformed},
		"a line break within":           {part[0] + ".\r\n" + part[1] + "." + part[2], Malformed},
		"a U+0000 behind":               {good + "\x00", Malformed},
		"padded":                        {good + "=", Malformed},
		"a padded payload":              {join(part[0], part[1]+"=", part[2]), Malformed},
		"a padded header":               {join(std(`{"alg":"HS256" }`), part[1], part[2]), Malformed},
		"standard alphabet":             {strings.NewReplacer("-", "+", "_", "/").Replace(odd), Malformed},
		"bits behind the signature":     {loose(good), Malformed},
		"bits behind the payload":       {looseSigned(t, loose), Malformed},
		"a header that is no JSON":      {by(`alg=HS256`, sha256.New), Malformed},
		"a header that is a list":       {by(`["HS256"]`, sha256.New), Malformed},
		"a header that is null":         {by(`null`, sha256.New), Malformed},
		"a header behind a BOM":         {by("\ufeff"+plain, sha256.New), Malformed},
		"a header that is no UTF-8":     {by("{\"alg\":\"HS256\",\"kid\":\"\xff\"}", sha256.New), Malformed},
		"a header and more":             {by(plain+plain, sha256.New), Malformed},
		"two alg, the latter right":     {by(`{"alg":"none","alg":"HS256"}`, sha256.New), Malformed},
		"two alg, the former right":     {by(`{"alg":"HS256","alg":"none"}`, sha256.New), Malformed},
		"two alg, in other letters":     {by(`{"alg":"HS256","\u0061lg":"none"}`, sha256.New), Malformed},
		"two typ":                       {by(`{"alg":"HS256","typ":"JWT","typ":"JWT"}`, sha256.New), Malformed},
		"a kid that is no string":       {by(`{"alg":"HS256","kid":5}`, sha256.New), Malformed},
		"a cty that is no string":       {by(`{"alg":"HS256","cty":null}`, sha256.New), Malformed},
		"a typ that is no string":       {by(`{"alg":"HS256","typ":["JWT"]}`, sha256.New), Malformed},
		"alg none, no signature":        {text(`{"alg":"none"}`) + ".", WrongAlg},
		"alg none, signed":              {by(`{"alg":"none"}`, sha256.New), WrongAlg},
		"alg None":                      {text(`{"alg":"None"}`) + ".", WrongAlg},
		"alg NONE, signed":              {by(`{"alg":"NONE"}`, sha256.New), WrongAlg},
		"alg HS384":                     {by(`{"alg":"HS384"}`, sha512.New384), WrongAlg},
		"alg HS512":                     {by(`{"alg":"HS512"}`, sha512.New), WrongAlg},
		"alg HS512, signed by SHA-256":  {by(`{"alg":"HS512"}`, sha256.New), WrongAlg},
		"alg RS256":                     {rs(), WrongAlg},
		"alg RS256, signed by HMAC":     {by(`{"alg":"RS256"}`, sha256.New), WrongAlg},
		"alg ES256, signed by HMAC":     {by(`{"alg":"ES256"}`, sha256.New), WrongAlg},
		"an alg that nobody knows":      {by(`{"alg":"x"}`, sha256.New), WrongAlg},
		"alg hs256":                     {by(`{"alg":"hs256"}`, sha256.New), WrongAlg},
		"alg HS256 and a blank":         {by(`{"alg":"HS256 "}`, sha256.New), WrongAlg},
		"alg is no string":              {by(`{"alg":256}`, sha256.New), WrongAlg},
		"alg is a list":                 {by(`{"alg":["HS256"]}`, sha256.New), WrongAlg},
		"alg is null":                   {by(`{"alg":null}`, sha256.New), WrongAlg},
		"alg is empty":                  {by(`{"alg":""}`, sha256.New), WrongAlg},
		"alg is missing":                {by(`{"typ":"JWT"}`, sha256.New), WrongAlg},
		"Alg is another member":         {by(`{"Alg":"HS256"}`, sha256.New), WrongAlg},
		"no signature":                  {join(part[0], part[1], ""), Signature},
		"a shorter signature":           {join(part[0], part[1], part[2][:40]), Signature},
		"a longer signature":            {join(part[0], part[1], part[2]+"A"), Signature},
		"another one's payload":         {join(part[0], strings.Split(other, ".")[1], part[2]), Signature},
		"another one's signature":       {join(part[0], part[1], strings.Split(other, ".")[2]), Signature},
		"HS256, signed by SHA-512":      {by(plain, sha512.New), Signature},
		"HS256, signed by RSA":          {join(part[0], part[1], strings.Split(rs(), ".")[2]), Signature},
		"HS256, the payload only":       {join(part[0], part[1], mac(sha256.New, secret, part[1])), Signature},
		"HS256, another secret":         {text(plain) + "." + mac(sha256.New, []byte("another"), text(plain)), Signature},
		"HS256, no secret":              {text(plain) + "." + mac(sha256.New, nil, text(plain)), Signature},
		"HS256, the secret and a blank": {text(plain) + "." + mac(sha256.New, append(slices.Clone(secret), ' '), text(plain)), Signature},
	} {
		t.Run(name, func(t *testing.T) {
			if got := reason(t, c.token, secret, now); got != c.want {
				t.Errorf("%q, want %q: %s", got, c.want, c.token)
			}
		})
	}

	for _, member := range []string{"jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256", "crit", "b64", "zip", "enc"} {
		for _, value := range []string{`"https://evil.example/k"`, `{"kty":"oct","k":"AAAA"}`, `["exp"]`, `[]`, `null`, `true`, `false`} {
			if got := reason(t, by(`{"alg":"HS256","`+member+`":`+value+`}`, sha256.New), secret, now); got != Malformed {
				t.Errorf("a header with %s %s: %q, want malformed", member, value, got)
			}
		}
	}
}

// looseSigned is a token whose payload ends in loose bits, which are signed.
func looseSigned(t *testing.T, loose func(string) string) string {
	for _, sub := range []string{"u", "u1", "u12"} {
		if p := `{"sub":"` + sub + `","exp":` + in(time.Hour) + `}`; len(p)%3 != 0 {
			text := b64(plain) + "." + loose(b64(p))
			return text + "." + mac(sha256.New, secret, text)
		}
	}
	t.Fatal("no payload leaves bits")
	return ""
}

func TestOnlyTheSecretItWasSignedWithFits(t *testing.T) {
	token := with(``)
	for name, key := range map[string][]byte{"nil": nil, "empty": {}, "another": []byte("another"), "a part": secret[:len(secret)-1],
		"in capitals": []byte(strings.ToUpper(string(secret)))} {
		if got := reason(t, token, key, now); got != Signature {
			t.Errorf("%s: %q", name, got)
		}
	}
	// Neither does one that is signed with nothing fit nothing.
	text := b64(plain) + "." + b64(`{"sub":"u1","exp":`+in(time.Hour)+`}`)
	for _, key := range [][]byte{nil, {}} {
		if got := reason(t, text+"."+mac(sha256.New, nil, text), key, now); got != Signature {
			t.Errorf("signed with nothing: %q", got)
		}
	}
}

// Cut, changed or grown at every byte: what decides is which part was hit, and
// whether what is left of it is base64url.
func TestAChangeAnywhereIsRefused(t *testing.T) {
	token := with(`"name":"Ada","meta":{"plan":"pro"}`)
	first, last := strings.IndexByte(token, '.'), strings.LastIndexByte(token, '.')
	strict := base64.RawURLEncoding.Strict()
	clean := func(s string) bool { _, err := strict.DecodeString(s); return err == nil }
	for i := range token {
		want := Malformed
		if i > last && clean(token[last+1:i]) {
			want = Signature
		}
		if got := reason(t, token[:i], secret, now); got != want {
			t.Errorf("cut at %d: %q, want %q", i, got, want)
		}
		for _, c := range "A_9.=+/ \n\x00\xff" {
			for how, s := range map[string]string{"changed": token[:i] + string(byte(c)) + token[i+1:], "grown": token[:i] + string(byte(c)) + token[i:]} {
				if s == token {
					continue
				}
				got := reason(t, s, secret, now)
				parts := strings.Split(s, ".")
				switch whole := len(parts) == 3 && !strings.ContainsAny(s, "\n") && clean(parts[0]) && clean(parts[1]) && clean(parts[2]) && parts[1] != ""; {
				case !whole && got != Malformed:
					t.Errorf("%s at %d to %q: %q, want malformed", how, i, c, got)
				case whole && i > first && got != Signature:
					t.Errorf("%s at %d to %q: %q, want signature", how, i, c, got)
				case whole && got != Signature && got != WrongAlg && got != Malformed:
					t.Errorf("%s at %d to %q, in the header: %q", how, i, c, got)
				}
			}
		}
	}
}

// RFC 7515, appendix A.1: its header, payload and signature hold line breaks, which are
// signed as they are.
func TestTheExampleOfTheRFC(t *testing.T) {
	const token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9" +
		".eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ" +
		".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
	key, err := base64.RawURLEncoding.DecodeString("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
	if err != nil {
		t.Fatal(err)
	}
	got, refused := verify(token, key)
	if want := "{\"iss\":\"joe\",\r\n \"exp\":1300819380,\r\n \"http://example.com/is_root\":true}"; refused != nil || string(got) != want {
		t.Errorf("%q, %v", got, refused)
	}
	if got := reason(t, token, key, time.Unix(1300819380, 0)); got != Expired {
		t.Errorf("at its end: %q", got)
	}
	if got := reason(t, token, key, time.Unix(1300819379, 0)); got != BadClaims { // it has no sub
		t.Errorf("before its end: %q", got)
	}
}

// Tokens as libraries make them.
func TestTokensOfALibrary(t *testing.T) {
	built, err := jwt.NewBuilder().Subject("u1").IssuedAt(now).NotBefore(now).Expiration(now.Add(time.Hour)).
		Claim("name", "Ada").Claim("email", "ada@example.com").Claim("meta", map[string]any{"groups": []string{"gold"}}).Build()
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Sign(built, jwt.WithKey(jwa.HS256, secret))
	if err != nil {
		t.Fatal(err)
	}
	want := Claims{Subject: "u1", Name: "Ada", HasName: true, Email: "ada@example.com", HasEmail: true, Meta: []byte(`{"groups":["gold"]}`), Groups: []string{"gold"}}
	if got, err := Verify(string(token), secret, now); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got := reason(t, string(token), []byte("another"), now); got != Signature {
		t.Errorf("another secret: %q", got)
	}
	for _, alg := range []jwa.SignatureAlgorithm{jwa.HS384, jwa.HS512} {
		token, err := jwt.Sign(built, jwt.WithKey(alg, secret))
		if err != nil {
			t.Fatal(err)
		}
		if got := reason(t, string(token), secret, now); got != WrongAlg {
			t.Errorf("%s: %q", alg, got)
		}
	}
	token, err = jwt.NewSerializer().Sign(jwt.WithKey(jwa.HS256, secret)).Sign(jwt.WithKey(jwa.HS256, secret)).Serialize(built)
	if err != nil {
		t.Fatal(err)
	}
	if got := reason(t, string(token), secret, now); got != Malformed {
		t.Errorf("nested: %q", got)
	}
	// Its lists of audiences, its JSON form and its unsecured tokens.
	token, err = jws.Sign([]byte(`{"sub":"u1","exp":`+in(time.Hour)+`}`), jws.WithJSON(), jws.WithKey(jwa.HS256, secret))
	if err != nil {
		t.Fatal(err)
	}
	if got := reason(t, string(token), secret, now); got != Malformed {
		t.Errorf("in JSON: %q", got)
	}
	token, err = jwt.Sign(built, jwt.WithInsecureNoSignature())
	if err != nil {
		t.Fatal(err)
	}
	if got := reason(t, string(token), secret, now); got != WrongAlg {
		t.Errorf("unsecured: %q", got)
	}
}

// The detail is shown to the sender of the token.
func TestADetailRepeatsNothingOfTheToken(t *testing.T) {
	const canary = "canary"
	for _, token := range []string{canary, with(`"name":["` + canary + `"]`), with(`"sub":"` + canary + `"`), with(`"meta":"` + canary + `"`),
		with(`"` + canary + `":1,"` + canary + `":2`), signed(`{"alg":"`+canary+`"}`, `{}`), signed(`{"alg":"HS256","typ":"`+canary+`"}`, `{}`),
		payload(`{"sub":"u1","exp":"` + canary + `"}`), payload(canary)} {
		if _, err := Verify(token, secret, now); err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: %v", token, err)
		}
	}
}

// Nothing panics, nothing is accepted that was not signed with the secret, and what is
// signed is accepted only within its bounds.
func FuzzVerify(f *testing.F) {
	f.Add(with(``), `{"sub":"u1","exp":`+in(time.Hour)+`}`, plain)
	f.Add(with(`"meta":{"groups":["a"]}`), `{"sub":"u1","exp":1e9,"meta":{"a":[{"b":{}}]}}`, `{"alg":"none"}`)
	f.Add("..", `{"sub":"\ud83d","exp":`+in(25*time.Hour)+`,"iat":0.1,"nbf":1e308}`, `{"alg":"HS256","kid":"\u0000"}`)
	f.Add("a.b.c", `[`, `{"alg":"HS256","crit":["exp"]}`)
	f.Fuzz(func(t *testing.T, token, claims, header string) {
		if reason(t, token, secret, now) == ok {
			at := strings.LastIndexByte(token, '.')
			if mac(sha256.New, secret, token[:at]) != token[at+1:] {
				t.Errorf("forged: %q", token)
			}
		}
		if got := reason(t, token, []byte("another"), now); got != Signature && got != Malformed && got != WrongAlg {
			t.Errorf("with another secret: %q", got)
		}
		c, err := Verify(signed(header, claims), secret, now)
		if err == nil && (c.Subject == "" || len(c.Subject) > 4*maxSub || len(c.Name) > 4*maxName || len(c.Email) > 4*maxEmail || len(c.Meta) > maxToken) {
			t.Errorf("out of bounds: %+v", c)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	full := `"iat":` + in(0) + `,"nbf":` + in(0) + `,"name":"Ada Lovelace","email":"ada@example.com","meta":{"plan":"pro","groups":["gold","eu"]}`
	for _, c := range []struct{ name, token string }{{"least", with(``)}, {"all claims", with(full)}, {"8 KiB", sized(8 << 10)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Verify(c.token, secret, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("forged", func(b *testing.B) {
		token := with(``)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Verify(token, secret[1:], now); err == nil {
				b.Fatal("accepted")
			}
		}
	})
}
