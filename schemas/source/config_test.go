package source_test

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/source"
)

func paths(bad []problem.Field) string {
	var out []string
	for _, f := range bad {
		out = append(out, f.Path)
	}
	return strings.Join(out, " ")
}

// TestConfig is the table of kinds in service.md, with everything that is refused.
func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind source.Kind
		raw  string
		bad  string // paths of the complaints
	}{
		{"upload", ``, ""}, {"upload", `{}`, ""}, {"upload", `null`, ""}, {"upload", `{"x":1}`, "config.x"},
		{"office_drive", `{"drive_id":"b!x-1_2"}`, ""}, {"office_drive", `{}`, "config.drive_id"}, {"office_drive", ``, "config.drive_id"},
		{"office_drive", `{"drive_id":"a/b"}`, "config.drive_id"}, {"office_drive", `{"drive_id":7}`, "config.drive_id"}, {"office_drive", `{"drive_id":null}`, "config.drive_id"},
		{"office_drive", `{"drive_id":"x","Drive_ID":"y"}`, "config.Drive_ID"},
		{"wiki", `{"base_url":"https://x.example/wiki/"}`, ""}, {"wiki", `{"base_url":"https://x.example","space_key":"ENG"}`, ""},
		{"wiki", `{"base_url":"x.example"}`, "config.base_url"}, {"wiki", `{"base_url":"https://u:p@x.example"}`, "config.base_url"},
		{"wiki", `{"base_url":"https://x.example?a"}`, "config.base_url"}, {"wiki", `{"base_url":"ftp://x.example","space_key":""}`, "config.base_url config.space_key"},
		{"wiki", `{"base_url":"https://x.example","space_key":null}`, ""}, {"wiki", `{"space_key":"ENG"}`, "config.base_url"},
		{"cloud_drive", ``, ""}, {"cloud_drive", `{"folder_id":"1aB_-"}`, ""}, {"cloud_drive", `{"folder_id":"x' or 'y"}`, "config.folder_id"},
		{"object_store", `{"endpoint":"https://s3.example:9000","region":"eu-1","bucket":"docs","prefix":"a b/"}`, ""},
		{"object_store", `{"endpoint":"s3.example","region":"eu-1","bucket":"docs"}`, ""},
		{"object_store", `{"endpoint":"https://s3.example/path","region":"","bucket":"d","prefix":1}`, "config.bucket config.endpoint config.prefix config.region"},
		{"object_store", `{}`, "config.bucket config.endpoint config.region"},
		{"web", `{"url":"http://x.example"}`, ""}, {"web", `{"urls":["https://x.example","https://y.example/a"],"depth":0,"max_pages":1000}`, ""},
		{"web", `{}`, "config.url"}, {"web", `{"url":"https://x.example","urls":["https://x.example"]}`, "config.url"}, {"web", `{"urls":[]}`, "config.urls"},
		{"web", `{"urls":["https://x.example",7]}`, "config.urls"}, {"web", `{"url":"https://x.example","depth":11}`, "config.depth"},
		{"web", `{"url":"https://x.example","depth":1.5,"max_pages":0}`, "config.depth config.max_pages"}, {"web", `{"url":"https://x.example","max_pages":1001}`, "config.max_pages"},
		{"web", `{"url":"https://x.example","max_pages":"7"}`, "config.max_pages"}, {"web", `{"url":"javascript:x"}`, "config.url"}, {"web", `{"url":"https://` + strings.Repeat("x", 2048) + `"}`, "config.url"},
		{"web", `[]`, "config"}, {"web", `"x"`, "config"}, {"fax", `{}`, "kind"},
	} {
		if _, bad := source.ParseConfig(c.kind, json.RawMessage(c.raw)); paths(bad) != c.bad {
			t.Errorf("%s %.80s: %v, want %q", c.kind, c.raw, bad, c.bad)
		}
	}
	w, _ := source.ParseConfig(source.Web, json.RawMessage(`{"url":"https://x.example"}`))
	if w.Depth != 2 || w.Pages != 100 {
		t.Errorf("%+v", w)
	}
}

// TestCredentials: the required ones, no others, and never a value in a message.
func TestCredentials(t *testing.T) {
	t.Parallel()
	type m = map[string]string
	for _, c := range []struct {
		kind source.Kind
		in   m
		bad  string
	}{
		{"upload", nil, ""}, {"upload", m{"access_token": "canary"}, "credentials.access_token"}, {"web", m{"x": "canary"}, "credentials.x"},
		{"office_drive", m{"access_token": "canary"}, ""}, {"office_drive", m{}, "credentials.access_token"}, {"office_drive", m{"access_token": ""}, "credentials.access_token"},
		{"cloud_drive", m{"access_token": "canary\r\nX: y"}, "credentials.access_token"}, {"cloud_drive", m{"access_token": strings.Repeat("canary", 4000)}, "credentials.access_token"},
		{"wiki", m{"email": "a@b", "api_token": "canary"}, ""}, {"wiki", m{"email": "a@b", "token": "canary"}, "credentials.token credentials.api_token"},
		{"object_store", m{"access_key_id": "a", "secret_access_key": "canary"}, ""}, {"object_store", m{"access_key_id": "a", "secret_access_key": "b", "session_token": "canary"}, ""},
	} {
		bad := source.CheckCredentials(c.kind, c.in)
		if paths(bad) != c.bad {
			t.Errorf("%s: %v, want %q", c.kind, bad, c.bad)
		}
		for _, f := range bad {
			if strings.Contains(f.Path+f.Message, "canary") {
				t.Errorf("%+v quotes a value", f)
			}
		}
	}
}

// TestMoved is open-parts.md, Changes, "Credentials follow no changed address", for sources.
func TestMoved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind     source.Kind
		from, to string
		moved    bool
	}{
		{"wiki", `{"base_url":"https://x.example"}`, `{"base_url":"https://X.example:443/wiki/","space_key":"A"}`, false},
		{"wiki", `{"base_url":"https://x.example"}`, `{"base_url":"https://y.example"}`, true},
		{"wiki", `{"base_url":"https://x.example"}`, `{"base_url":"http://x.example"}`, true},
		{"wiki", `{"base_url":"https://x.example"}`, `{"base_url":"https://x.example:8443"}`, true},
		{"object_store", `{"endpoint":"https://x.example","region":"a","bucket":"aaa"}`, `{"endpoint":"x.example","region":"b","bucket":"bbb"}`, false},
		{"object_store", `{"endpoint":"https://x.example","region":"a","bucket":"aaa"}`, `{"endpoint":"https://y.example","region":"a","bucket":"aaa"}`, true},
		{"office_drive", `{"drive_id":"a"}`, `{"drive_id":"b"}`, false},
	} {
		from, bad := source.ParseConfig(c.kind, json.RawMessage(c.from))
		to, bad2 := source.ParseConfig(c.kind, json.RawMessage(c.to))
		if bad != nil || bad2 != nil {
			t.Fatal(bad, bad2)
		}
		if source.Moved(from, to) != c.moved {
			t.Errorf("%s to %s: %v", c.from, c.to, !c.moved)
		}
	}
	if u, _ := url.Parse("https://[2001:DB8::1]/x"); source.Origin(u) != "https://[2001:db8::1]:443" {
		t.Error(source.Origin(u))
	}
}

// FuzzConfig: any bytes are a configuration or complaints.
func FuzzConfig(f *testing.F) {
	f.Add("web", `{"urls":["https://x.example"],"depth":1}`)
	f.Fuzz(func(t *testing.T, kind, raw string) {
		c, bad := source.ParseConfig(source.Kind(kind), json.RawMessage(raw))
		if bad == nil {
			c.Addresses()
			c.Origins()
		}
	})
}
