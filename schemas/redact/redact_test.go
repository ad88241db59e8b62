package redact

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

func TestKey(t *testing.T) {
	for _, key := range []string{
		"password", "Password", "PASSWORD", "user_password", "passwordHash", "new-password", "passwd", "passphrase",
		"token", "access_token", "accessToken", "x-auth-token", "refresh.token", "ID_TOKEN", "authtoken_v2",
		"secret", "client_secret", "clientSecret", "secrets", "api_key", "apiKey", "API-KEY", "x-api-key", "apikey", "api key",
		"authorization", "Authorization", "proxy-authorization", "cookie", "Set-Cookie", "cookies", "credentials", "credential",
		"private_key", "aws_access_key_id", "secretAccessKey", "bearer", "db_pwd", "pin", "auth", "otp", "user_jwt", "sessionId",
	} {
		if !Key(key) {
			t.Errorf("%q does not look secret", key)
		}
	}
	for _, key := range []string{
		"", "name", "text", "tokens_in", "max_tokens", "token_count", "tokenizer", "author", "authors", "passenger", "compass",
		"keyboard", "key", "primary_key", "opinion", "pinned", "authority", "session", "monkey", "idempotency_key",
	} {
		if Key(key) {
			t.Errorf("%q looks secret", key)
		}
	}
}

func TestJSON(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"nothing to hide keeps its bytes", ` { "b" : 1.50, "a":[1e3, true ,null] } `, ` { "b" : 1.50, "a":[1e3, true ,null] } `},
		{"a text under a secret key", `{"password":"hunter2","user":"a"}`, `{"password":"[redacted]","user":"a"}`},
		{"a number, an object, an array, null", `{"pin":1234,"secret":{"a":[1,{"b":"}"}]},"cookies":["a","b"],"token":null}`,
			`{"pin":"[redacted]","secret":"[redacted]","cookies":"[redacted]","token":"[redacted]"}`},
		{"nested", `{"a":[{"b":{"API-Key":"x"}}]}`, `{"a":[{"b":{"API-Key":"[redacted]"}}]}`},
		{"an escaped key", `{"pass\u0077ord":"x"}`, `{"pass\u0077ord":"[redacted]"}`},
		{"a key twice", `{"token":"a","token":"b"}`, `{"token":"[redacted]","token":"[redacted]"}`},
		{"white space stays", "{ \"token\" : \"a\" ,\n \"n\":9007199254740993 }", "{ \"token\" : \"[redacted]\" ,\n \"n\":9007199254740993 }"},
		{"quotes and braces inside texts", `{"t":"\"token\":\"x\" } ]","password":"a\"b\\"}`, `{"t":"\"token\":\"x\" } ]","password":"[redacted]"}`},
		{"numbers of tokens are counts", `{"max_tokens":5,"tokens":-1}`, `{"max_tokens":5,"tokens":-1}`},
		{"other tokens are not", `{"tokens":["a"],"refresh_tokens":"x"}`, `{"tokens":"[redacted]","refresh_tokens":"[redacted]"}`},
		{"empty containers", `{"secret":{},"token":[],"a":{},"b":[]}`, `{"secret":"[redacted]","token":"[redacted]","a":{},"b":[]}`},
		{"a bare value", `"password"`, `"password"`},
		{"nothing", ``, ``},
		{"no JSON", `{"token":`, `"[redacted]"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := []byte(c.in)
			if got := string(JSON(in)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if string(in) != c.in {
				t.Error("the input was changed")
			}
		})
	}
}

// FuzzJSON compares the walk over bytes with the rule on the decoded value.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"password":"x"}`, `[{"a":{"to\u006ben":[1,2,{"}":"]"}]}},"\\\""]`, `{"tokens":1,"tokens":"a"}`, `{"":{"":""}}`, `-0.1e+5`, "\"\\ud800\"", `{"tokens" :  -1 , "x":[ ] }`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		out := JSON(in)
		if !bytes.Equal(in, before) {
			t.Fatal("the input was changed")
		}
		if len(in) == 0 {
			return
		}
		if !json.Valid(in) {
			if string(out) != `"[redacted]"` {
				t.Fatalf("no JSON became %s", out)
			}
			return
		}
		if want, got := model(t, in), decode(t, out); !reflect.DeepEqual(want, got) {
			t.Fatalf("%s became %s", in, out)
		}
		if again := JSON(out); !bytes.Equal(again, out) {
			t.Fatalf("%s is redacted again to %s", out, again)
		}
	})
}

func decode(t *testing.T, b []byte) any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}

func model(t *testing.T, b []byte) any { return hide(decode(t, b)) }

func hide(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			_, number := e.(json.Number)
			if k2 := plain(k); secret(k2) || len(k2) >= 6 && k2[len(k2)-6:] == counts && !number {
				v[k] = Mark
			} else {
				v[k] = hide(e)
			}
		}
	case []any:
		for i, e := range v {
			v[i] = hide(e)
		}
	}
	return v
}

func BenchmarkJSON(b *testing.B) {
	in := []byte(`{"customer":{"id":12,"name":"A","notes":["x","y"]},"amount":12.5,"api_key":"abc"}`)
	b.ReportAllocs()
	for b.Loop() {
		JSON(in)
	}
}
