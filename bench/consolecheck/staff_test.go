package consolecheck

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"testing"

	"github.com/playwright-community/playwright-go"
)

// member is a person whom several tests share, with an open session: passwords cost much to hash.
type member struct {
	email   string
	cookies []playwright.OptionalCookie
}

var staff struct {
	sync.Mutex // guards known
	known      map[string]member
}

// one returns the shared person of a role.
func (s *service) one(t *testing.T, role string) member {
	t.Helper()
	staff.Lock()
	defer staff.Unlock()
	if m, ok := staff.known[s.addr+role]; ok {
		return m
	}
	m := member{email: role + "-of-all@example.com"}
	post := func(path string, in object, fields ...string) *http.Response {
		body, err := json.Marshal(in)
		must(t, err)
		var res *http.Response
		until(t, path+" is answered", func() bool {
			q, err := http.NewRequest("POST", s.url()+path, bytes.NewReader(body))
			must(t, err)
			q.Header.Set("Content-Type", "application/json")
			q.Header.Set("X-Forwarded-For", address())
			for i := 0; i < len(fields); i += 2 {
				q.Header.Set(fields[i], fields[i+1])
			}
			res, err = http.DefaultClient.Do(q)
			must(t, err)
			res.Body.Close()
			return res.StatusCode != 503 && res.StatusCode != 429 // passwords are hashed a few at a time
		})
		if res.StatusCode >= 300 {
			t.Fatalf("%s: %s", path, res.Status)
		}
		return res
	}
	post("/v1/users", object{"email": m.email, "name": "A " + role, "role": role, "password": password}, "Authorization", "Bearer "+s.key, "X-Tenant-Id", s.tenant)
	for _, c := range post("/v1/auth/login", object{"email": m.email, "password": password}).Cookies() {
		m.cookies = append(m.cookies, playwright.OptionalCookie{Name: c.Name, Value: c.Value, URL: playwright.String(s.url()), HttpOnly: playwright.Bool(true)})
	}
	if staff.known == nil {
		staff.known = map[string]member{}
	}
	staff.known[s.addr+role] = m
	return m
}

// as opens a page as the shared person of a role.
func (v *visitor) as(role, path string) *tab {
	v.t.Helper()
	must(v.t, v.AddCookies(v.s.one(v.t, role).cookies))
	p := v.tab()
	p.goTo(path)
	return p
}
