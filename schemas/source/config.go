package source

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// Kind is a kind of source.
type Kind = lifecycle.SourceKind

// The kinds of sources.
const (
	Upload      = lifecycle.SourceUpload
	OfficeDrive = lifecycle.SourceOfficeDrive
	Wiki        = lifecycle.SourceWiki
	CloudDrive  = lifecycle.SourceCloudDrive
	ObjectStore = lifecycle.SourceObjectStore
	Web         = lifecycle.SourceWeb
)

// Bounds of a crawl.
const (
	DefaultDepth = 2
	MaxDepth     = 10
	DefaultPages = 100
	MaxPages     = 1000
	maxStarts    = 20
	maxURL       = 2048
)

// Config is the configuration of a source of any kind; the fields of other kinds are zero.
type Config struct {
	DriveID  string // office_drive
	BaseURL  string // wiki: without / and /wiki at its end
	SpaceKey string // wiki
	FolderID string // cloud_drive
	Endpoint string // object_store: scheme and host
	Region   string
	Bucket   string
	Prefix   string
	URLs     []string // web: the start pages
	Depth    int      // links from a start page
	Pages    int      // documents at most
}

// Address is an address in a configuration that the outbound guard must check.
type Address struct{ Path, URL string }

// Addresses returns the addresses that a tenant chose, with the names of their fields. The
// addresses of a web source may be plain http.
func (c Config) Addresses() []Address {
	var out []Address
	if c.BaseURL != "" {
		out = append(out, Address{"config.base_url", c.BaseURL})
	}
	if c.Endpoint != "" {
		out = append(out, Address{"config.endpoint", c.Endpoint})
	}
	for i, u := range c.URLs {
		path := "config.url"
		if len(c.URLs) > 1 {
			path = fmt.Sprintf("config.urls[%d]", i)
		}
		out = append(out, Address{path, u})
	}
	return out
}

// Origins returns the origins (scheme, host, port) that get the source's credentials and that the
// tenant chose. The addresses of the drive vendors are the operator's.
func (c Config) Origins() []string {
	seen := map[string]bool{}
	for _, a := range c.Addresses() {
		if u, err := url.Parse(a.URL); err == nil {
			seen[Origin(u)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// Moved reports whether a change of configuration leads to an origin that had no credentials
// before, so that they must be dropped (open-parts.md, Changes, "Credentials follow no changed
// address").
func Moved(from, to Config) bool {
	before := from.Origins()
	return slices.ContainsFunc(to.Origins(), func(o string) bool { return !slices.Contains(before, o) })
}

// Origin returns scheme, host and port of a URL in one form.
func Origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return strings.ToLower(u.Scheme) + "://" + host + ":" + port
}

// field is a field of a configuration. set stores the value and returns what is wrong with it.
type field struct {
	need bool
	set  func(c *Config, raw json.RawMessage) string
}

var (
	vendorID = regexp.MustCompile(`^[A-Za-z0-9!_.~,:=-]{1,255}$`)
	spaceKey = regexp.MustCompile(`^[A-Za-z0-9_.~-]{1,255}$`)
	region   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	bucket   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`)
)

var fields = map[Kind]map[string]field{
	Upload:      {},
	OfficeDrive: {"drive_id": {true, pattern(vendorID, "an id of a drive", func(c *Config) *string { return &c.DriveID })}},
	Wiki: {
		"base_url":  {true, setBaseURL},
		"space_key": {false, pattern(spaceKey, "a key of a space", func(c *Config) *string { return &c.SpaceKey })},
	},
	CloudDrive: {"folder_id": {false, pattern(vendorID, "an id of a folder", func(c *Config) *string { return &c.FolderID })}},
	ObjectStore: {
		"endpoint": {true, setEndpoint},
		"region":   {true, pattern(region, "a name of a region", func(c *Config) *string { return &c.Region })},
		"bucket":   {true, pattern(bucket, "a name of a bucket: 3 to 63 letters, digits, dots, hyphens", func(c *Config) *string { return &c.Bucket })},
		"prefix":   {false, setPrefix},
	},
	Web: {
		"url":       {false, setURL},
		"urls":      {false, setURLs},
		"depth":     {false, number(0, MaxDepth, func(c *Config) *int { return &c.Depth })},
		"max_pages": {false, number(1, MaxPages, func(c *Config) *int { return &c.Pages })},
	},
}

// ParseConfig reads a configuration, and returns everything that is wrong with it. It does not
// ask the outbound guard about addresses. raw may be empty or null where nothing is required.
func ParseConfig(kind Kind, raw json.RawMessage) (Config, []problem.Field) {
	known, ok := fields[kind]
	if !ok {
		return Config{}, []problem.Field{{Path: "kind", Message: "must be one of upload, office_drive, wiki, cloud_drive, object_store, web"}}
	}
	given := map[string]json.RawMessage{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &given); err != nil {
			return Config{}, []problem.Field{{Path: "config", Message: "must be an object"}}
		}
	}
	c, bad := Config{Depth: -1}, []problem.Field(nil)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		f, ok := known[name]
		if !ok {
			message := "is not a field of the kind " + string(kind)
			if len(known) == 0 {
				message = "the kind " + string(kind) + " takes no configuration"
			}
			bad = append(bad, problem.Field{Path: "config." + clip(name), Message: message})
			continue
		}
		if isNull(given[name]) && !f.need {
			delete(given, name)
			continue
		}
		if message := f.set(&c, given[name]); message != "" {
			bad = append(bad, problem.Field{Path: "config." + name, Message: message})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if _, ok := given[name]; known[name].need && !ok {
			bad = append(bad, problem.Field{Path: "config." + name, Message: "is required"})
		}
	}
	if kind == Web {
		_, one := given["url"]
		_, many := given["urls"]
		if one == many {
			bad = append(bad, problem.Field{Path: "config.url", Message: "is required, or urls instead of it"})
		}
		if c.Depth < 0 {
			c.Depth = DefaultDepth
		}
		if c.Pages == 0 {
			c.Pages = DefaultPages
		}
	} else {
		c.Depth = 0
	}
	return c, bad
}

// credential keys of each kind; true: required.
var keys = map[Kind]map[string]bool{
	Upload:      {},
	OfficeDrive: {"access_token": true},
	Wiki:        {"email": true, "api_token": true},
	CloudDrive:  {"access_token": true},
	ObjectStore: {"access_key_id": true, "secret_access_key": true, "session_token": false},
	Web:         {},
}

const maxCredential = 16 << 10

// CheckCredentials returns everything that is wrong with the credentials of a source. No
// message quotes a value.
func CheckCredentials(kind Kind, given map[string]string) []problem.Field {
	known, bad := keys[kind], []problem.Field(nil)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		path, value := "credentials."+clip(name), given[name]
		switch _, ok := known[name]; {
		case !ok && len(known) == 0:
			bad = append(bad, problem.Field{Path: path, Message: "the kind " + string(kind) + " takes no credentials"})
		case !ok:
			bad = append(bad, problem.Field{Path: path, Message: "is not a credential of the kind " + string(kind)})
		case value == "":
			bad = append(bad, problem.Field{Path: path, Message: "must not be empty"})
		case len(value) > maxCredential:
			bad = append(bad, problem.Field{Path: path, Message: "must have at most 16,384 bytes"})
		case !headerSafe(value):
			bad = append(bad, problem.Field{Path: path, Message: "must not contain control characters"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if _, ok := given[name]; known[name] && !ok {
			bad = append(bad, problem.Field{Path: "credentials." + name, Message: "is required"})
		}
	}
	return bad
}

// TakesCredentials reports whether sources of a kind need credentials.
func TakesCredentials(kind Kind) bool { return len(keys[kind]) > 0 }

func headerSafe(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }) && utf8.ValidString(s)
}

func isNull(raw json.RawMessage) bool { return strings.TrimSpace(string(raw)) == "null" }

// clip shortens a name that a stranger chose.
func clip(name string) string { return problem.Clip(name, 60) }

func text(raw json.RawMessage) (string, string) {
	var s string
	if isNull(raw) || json.Unmarshal(raw, &s) != nil {
		return "", "must be a string"
	}
	return s, ""
}

func pattern(re *regexp.Regexp, what string, at func(*Config) *string) func(*Config, json.RawMessage) string {
	return func(c *Config, raw json.RawMessage) string {
		s, bad := text(raw)
		if bad != "" {
			return bad
		}
		if !re.MatchString(s) {
			return "must be " + what
		}
		*at(c) = s
		return ""
	}
}

func number(low, high int, at func(*Config) *int) func(*Config, json.RawMessage) string {
	return func(c *Config, raw json.RawMessage) string {
		var n int
		if isNull(raw) || json.Unmarshal(raw, &n) != nil || n < low || n > high {
			return fmt.Sprintf("must be a whole number from %d to %d", low, high)
		}
		*at(c) = n
		return ""
	}
}

func setPrefix(c *Config, raw json.RawMessage) string {
	s, bad := text(raw)
	if bad == "" && (len(s) > 1024 || !headerSafe(s)) {
		bad = "must have at most 1,024 bytes and no control characters"
	}
	c.Prefix = s
	return bad
}

// address parses a URL that a tenant chose.
func address(s string) (*url.URL, string) {
	if len(s) > maxURL {
		return nil, "must have at most 2,048 bytes"
	}
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Opaque != "" || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, "must be an https URL"
	}
	if u.User != nil {
		return nil, "must not contain user info"
	}
	return u, ""
}

func setBaseURL(c *Config, raw json.RawMessage) string {
	s, bad := text(raw)
	if bad != "" {
		return bad
	}
	u, bad := address(s)
	if bad != "" {
		return bad
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return "must be the address of the wiki, without a query"
	}
	u.Path, u.RawPath = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/wiki"), ""
	c.BaseURL = u.String()
	return ""
}

func setEndpoint(c *Config, raw json.RawMessage) string {
	s, bad := text(raw)
	if bad != "" {
		return bad
	}
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, bad := address(s)
	if bad == "" && (u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "") {
		bad = "must be a host and a port only, such as https://s3.example.com"
	}
	if bad != "" {
		return bad
	}
	c.Endpoint = (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
	return ""
}

func setURL(c *Config, raw json.RawMessage) string {
	s, bad := text(raw)
	if bad != "" {
		return bad
	}
	if _, bad := address(s); bad != "" {
		return strings.Replace(bad, "an https URL", "an https or http URL", 1)
	}
	c.URLs = []string{strings.TrimSpace(s)}
	return ""
}

func setURLs(c *Config, raw json.RawMessage) string {
	var list []json.RawMessage
	if isNull(raw) || json.Unmarshal(raw, &list) != nil || len(list) == 0 || len(list) > maxStarts {
		return fmt.Sprintf("must be a list of 1 to %d URLs", maxStarts)
	}
	var urls []string
	for i, entry := range list {
		var one Config
		if bad := setURL(&one, entry); bad != "" {
			return fmt.Sprintf("entry %d %s", i, bad)
		}
		if !slices.Contains(urls, one.URLs[0]) {
			urls = append(urls, one.URLs[0])
		}
	}
	c.URLs = urls
	return ""
}
