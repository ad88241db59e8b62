package embed

import (
	"encoding/json"
	"strings"
	"testing"

	"agentsvc/schemas/api"
)

// open-parts.md: origins are https://host[:port]; http:// is accepted only for loopback
// hosts. "" in want is a refusal, whose words are in says.
func TestParseOrigin(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ in, want, says string }{
		{"https://shop.example.com", "https://shop.example.com", ""},
		{"https://shop.example.com:443", "https://shop.example.com", ""},
		{"https://shop.example.com:8443", "https://shop.example.com:8443", ""},
		{"https://shop.example.com:80", "https://shop.example.com:80", ""},
		{"HTTPS://Shop.EXAMPLE.com", "https://shop.example.com", ""},
		{"https://xn--mnchen-3ya.example", "https://xn--mnchen-3ya.example", ""},
		{"https://intranet", "https://intranet", ""},
		{"https://a_b.example", "https://a_b.example", ""},
		{"https://example.com.", "https://example.com.", ""},
		{"https://192.0.2.1:8080", "https://192.0.2.1:8080", ""},
		{"https://[2001:DB8:0:0:0:0:0:1]", "https://[2001:db8::1]", ""},
		{"https://[::ffff:192.0.2.1]:444", "https://[::ffff:c000:201]:444", ""},
		{"http://localhost", "http://localhost", ""},
		{"http://localhost:80", "http://localhost", ""},
		{"http://localhost:3000", "http://localhost:3000", ""},
		{"http://shop.localhost:3000", "http://shop.localhost:3000", ""},
		{"http://127.0.0.1:3000", "http://127.0.0.1:3000", ""},
		{"http://127.9.9.9", "http://127.9.9.9", ""},
		{"http://[::1]:3000", "http://[::1]:3000", ""},
		{"https://localhost", "https://localhost", ""},

		{"", "", "must be https://host[:port]"},
		{"shop.example.com", "", "must be https://host[:port]"},
		{"null", "", "must be https://host[:port]"},
		{"//shop.example.com", "", "must be https://host[:port]"},
		{"ftp://shop.example.com", "", "must begin with https://"},
		{"javascript://shop.example.com", "", "must begin with https://"},
		{"https://shop.example.com/", "", "leave out the slash"},
		{"https://shop.example.com/shop", "", "leave out the slash"},
		{"https://shop.example.com?x", "", "leave out the slash"},
		{"https://shop.example.com#x", "", "leave out the slash"},
		{`https://shop.example.com\x`, "", "leave out the slash"},
		{"https://kim@shop.example.com", "", "must not name a user"},
		{"https://shop.example.com@evil.example", "", "must not name a user"},
		{"https://*.example.com", "", "is allowed only alone"},
		{"https://*", "", "is allowed only alone"},
		{"https://", "", "not written as browsers send it"},
		{"https://:443", "", "not written as browsers send it"},
		{"https://-a.example", "", "not written as browsers send it"},
		{"https://a..example", "", "not written as browsers send it"},
		{"https://a b.example", "", "not written as browsers send it"},
		{" https://shop.example.com", "", "must begin with https://"},
		{"https://shop.example.com ", "", "not written as browsers send it"},
		{"https://shop%2eexample.com", "", "not written as browsers send it"},
		{"https://" + strings.Repeat("a", 64) + ".example", "", "not written as browsers send it"},
		{"https://münchen.example", "", "Punycode"},
		{"https://192.0.2.256", "", "not written as browsers send it"},
		{"https://192.0.2", "", "not written as browsers send it"},
		{"https://0x7f.1", "", "not written as browsers send it"},
		{"https://127.0.0.01", "", "not written as browsers send it"},
		{"https://[::1", "", "not written as browsers send it"},
		{"https://[192.0.2.1]", "", "not written as browsers send it"},
		{"https://[fe80::1%25eth0]", "", "not written as browsers send it"},
		{"https://a.example:", "", "the port must be"},
		{"https://a.example:0", "", "the port must be"},
		{"https://a.example:65536", "", "the port must be"},
		{"https://a.example:+1", "", "the port must be"},
		{"https://a.example:4 43", "", "the port must be"},
		{"http://shop.example.com", "", "for this machine only"},
		{"http://localhost.example.com", "", "for this machine only"},
		{"http://notlocalhost", "", "for this machine only"},
		{"http://10.0.0.1", "", "for this machine only"},
		{"http://[2001:db8::1]", "", "for this machine only"},
	} {
		o, err := ParseOrigin(row.in)
		switch {
		case row.want == "":
			if err == nil || !strings.Contains(err.Error(), row.says) {
				t.Errorf("%q: %v, %v, want %q", row.in, o, err, row.says)
			}
		case err != nil || o.String() != row.want:
			t.Errorf("%q: %v, %v", row.in, o, err)
		default:
			if again, err := ParseOrigin(row.want); err != nil || again != o {
				t.Errorf("%q is not what it was: %v, %v", row.want, again, err)
			}
		}
	}
}

// An origin is compared as what it means, and exactly.
func TestAllowed(t *testing.T) {
	t.Parallel()
	list := []string{"https://shop.example.com", "https://b.example:8443", "http://localhost:3000", "https://[2001:db8::1]"}
	for _, row := range []struct {
		name, origin string
		list         []string
		want         bool
	}{
		{"itself", "https://shop.example.com", list, true},
		{"with the scheme's port", "https://shop.example.com:443", list, true},
		{"in capitals", "HTTPS://SHOP.example.com", list, true},
		{"another port", "https://shop.example.com:444", list, false},
		{"another scheme", "http://shop.example.com", list, false},
		{"a host below", "https://a.shop.example.com", list, false},
		{"the host above", "https://example.com", list, false},
		{"one that begins so", "https://shop.example.com.evil.example", list, false},
		{"one that ends so", "https://evilshop.example.com", list, false},
		{"with a dot behind it", "https://shop.example.com.", list, false},
		{"with a path", "https://shop.example.com/", list, false},
		{"its port", "https://b.example:8443", list, true},
		{"without its port", "https://b.example", list, false},
		{"this machine", "http://localhost:3000", list, true},
		{"another port of it", "http://localhost:3001", list, false},
		{"another name of it", "http://127.0.0.1:3000", list, false},
		{"an address in another form", "https://[2001:db8:0::1]", list, true},
		{"null", "null", list, false},
		{"none", "", list, false},
		{"null, where null is listed", "null", []string{"null"}, false},
		{"none, where none is listed", "", []string{""}, false},
		{"nowhere", "https://shop.example.com", nil, false},
		{"everywhere", "https://shop.example.com", []string{"*"}, true},
		{"plain http, everywhere", "http://shop.example.com", []string{"*"}, true},
		{"null, everywhere", "null", []string{"https://a.example", "*"}, true},
		{"none, everywhere", "", []string{"*"}, true},
		{"a star for an origin", "*", list, false},
	} {
		if Allowed(row.list, row.origin) != row.want {
			t.Errorf("%s: %q is not %v", row.name, row.origin, row.want)
		}
	}
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	normal, bad := Origins([]string{"*", "HTTPS://A.example:443", "https://a.example", "http://localhost", "https://b.example/", "x"}, false)
	if strings.Join(normal, " ") != "* https://a.example http://localhost" || len(bad) != 2 || bad[0].Path != "allowed_origins[4]" || bad[1].Path != "allowed_origins[5]" {
		t.Errorf("%q %+v", normal, bad)
	}
	normal, bad = Origins([]string{"http://localhost", "https://localhost"}, true)
	if strings.Join(normal, " ") != "https://localhost" || len(bad) != 1 || !strings.Contains(bad[0].Message, "outside production only") {
		t.Errorf("in production: %q %+v", normal, bad)
	}
	if normal, bad = Origins(nil, true); normal == nil || bad != nil {
		t.Errorf("none: %#v %+v", normal, bad)
	}
}

func TestNormal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"https://A.example:443": "https://a.example", "null": "null", "": "", "http://a.example": "http://a.example", "chrome-extension://abc": "chrome-extension://abc"} {
		if got := Normal(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	for in, want := range map[string]string{
		"https://a.example/x?y=https://b.example#z": "https://a.example", "https://a.example:8443": "https://a.example:8443", "https://kim:pw@a.example/": "https://a.example",
		"http://localhost:8080/v1": "http://localhost:8080", "/relative": "", "": "", "about:blank": "", "https://a.example\\@b.example": "https://a.example",
	} {
		if got := OfURL(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// open-parts.md, Embed: the defaults, and what is stored stays what was given.
func TestFilled(t *testing.T) {
	t.Parallel()
	show := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := show(FilledTheme(api.EmbedTheme{})); got != `{"color_scheme":"auto","accent":"#2563eb","radius":"soft","density":"normal","position":"right"}` {
		t.Error(got)
	}
	if got := show(FilledConfig(api.EmbedDisplayConfig{})); got != `{"starter_prompts":[],"show_history":true,"show_tool_activity":true,"show_sources":false}` {
		t.Error(got)
	}
	no, top := false, 0
	theme := api.EmbedTheme{ColorScheme: "dark", Accent: "#000000", Radius: "none", Density: "compact", FontFamily: "Inter", Position: "left", ZIndex: &top, AvatarURL: "https://a.example/x.png"}
	if got := FilledTheme(theme); got != theme {
		t.Errorf("%+v", got)
	}
	given := api.EmbedDisplayConfig{Title: "T", StarterPrompts: []string{"a"}, ShowHistory: &no}
	if got := show(FilledConfig(given)); got != `{"title":"T","starter_prompts":["a"],"show_history":false,"show_tool_activity":true,"show_sources":false}` {
		t.Error(got)
	}
	if given.ShowToolActivity != nil {
		t.Error("what was given is changed")
	}
}

func TestCheckTheme(t *testing.T) {
	t.Parallel()
	z := func(n int) *int { return &n }
	for name, row := range map[string]struct {
		in   api.EmbedTheme
		want string // the field; "": it is fine
	}{
		"nothing":            {api.EmbedTheme{}, ""},
		"everything":         {api.EmbedTheme{ColorScheme: "light", Accent: "#aBc123", Radius: "round", Density: "compact", FontFamily: `"Inter", 'Open Sans', sans-serif`, Position: "left", ZIndex: z(2147483647), AvatarURL: "https://a.example/x.png?y=1"}, ""},
		"a scheme":           {api.EmbedTheme{ColorScheme: "blue"}, "theme.color_scheme"},
		"a name of a colour": {api.EmbedTheme{Accent: "red"}, "theme.accent"},
		"a short colour":     {api.EmbedTheme{Accent: "#fff"}, "theme.accent"},
		"a colour and more":  {api.EmbedTheme{Accent: "#ffffff;"}, "theme.accent"},
		"a radius":           {api.EmbedTheme{Radius: "sharp"}, "theme.radius"},
		"a density":          {api.EmbedTheme{Density: "wide"}, "theme.density"},
		"a position":         {api.EmbedTheme{Position: "top"}, "theme.position"},
		"a font that ends":   {api.EmbedTheme{FontFamily: "x; background: url(//evil)"}, "theme.font_family"},
		"a font that calls":  {api.EmbedTheme{FontFamily: "var(--x)"}, "theme.font_family"},
		"a font of 201":      {api.EmbedTheme{FontFamily: strings.Repeat("x", 201)}, "theme.font_family"},
		"below everything":   {api.EmbedTheme{ZIndex: z(-1)}, "theme.z_index"},
		"plain http":         {api.EmbedTheme{AvatarURL: "http://a.example/x.png"}, "theme.avatar_url"},
		"a script":           {api.EmbedTheme{AvatarURL: "javascript:alert(1)"}, "theme.avatar_url"},
		"data":               {api.EmbedTheme{AvatarURL: "data:image/png;base64,AA"}, "theme.avatar_url"},
		"a user":             {api.EmbedTheme{AvatarURL: "https://kim@a.example/"}, "theme.avatar_url"},
		"no host":            {api.EmbedTheme{AvatarURL: "https:///x"}, "theme.avatar_url"},
	} {
		bad := CheckTheme(&row.in)
		if row.want == "" && len(bad) > 0 || row.want != "" && (len(bad) == 0 || bad[0].Path != row.want) {
			t.Errorf("%s: %+v", name, bad)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("ä", n) }
	for name, row := range map[string]struct {
		in   api.EmbedDisplayConfig
		want string // the field; "": it is fine
	}{
		"nothing":               {api.EmbedDisplayConfig{}, ""},
		"the longest":           {api.EmbedDisplayConfig{Title: x(120), Greeting: x(2000), StarterPrompts: []string{x(200), "b", "c", "d"}, Placeholder: x(120), Disclaimer: x(500), LauncherLabel: x(120), Locale: "de-CH-1996"}, ""},
		"lines":                 {api.EmbedDisplayConfig{Greeting: "Hi\nthere\tyou", Disclaimer: "a\r\nb"}, ""},
		"a direction's mark":    {api.EmbedDisplayConfig{Title: "שלום\u200f!"}, ""},
		"a title of 121":        {api.EmbedDisplayConfig{Title: x(121)}, "config.title"},
		"a title of two lines":  {api.EmbedDisplayConfig{Title: "a\nb"}, "config.title"},
		"a greeting of 2001":    {api.EmbedDisplayConfig{Greeting: x(2001)}, "config.greeting"},
		"an escape":             {api.EmbedDisplayConfig{Greeting: "a\x1bb"}, "config.greeting"},
		"text turned round":     {api.EmbedDisplayConfig{Placeholder: "a\u202eb"}, "config.placeholder"},
		"five prompts":          {api.EmbedDisplayConfig{StarterPrompts: []string{"a", "b", "c", "d", "e"}}, "config.starter_prompts"},
		"an empty prompt":       {api.EmbedDisplayConfig{StarterPrompts: []string{"a", " "}}, "config.starter_prompts[1]"},
		"a prompt of 201":       {api.EmbedDisplayConfig{StarterPrompts: []string{x(201)}}, "config.starter_prompts[0]"},
		"a disclaimer of 501":   {api.EmbedDisplayConfig{Disclaimer: x(501)}, "config.disclaimer"},
		"a label with a line":   {api.EmbedDisplayConfig{LauncherLabel: "a\u2028b"}, "config.launcher_label"},
		"a locale that is none": {api.EmbedDisplayConfig{Locale: "de_DE"}, "config.locale"},
		"an address to write":   {api.EmbedDisplayConfig{ContactURL: "mailto:help@shop.example.com?subject=The%20chat"}, ""},
		"a page to go to":       {api.EmbedDisplayConfig{ContactURL: "https://shop.example.com:8443/contact?from=chat#form"}, ""},
		"a scheme in capitals":  {api.EmbedDisplayConfig{ContactURL: "HTTPS://shop.example.com"}, ""},
		"plain http":            {api.EmbedDisplayConfig{ContactURL: "http://shop.example.com"}, "config.contact_url"},
		"a script":              {api.EmbedDisplayConfig{ContactURL: "javascript:alert(1)"}, "config.contact_url"},
		"a script in disguise":  {api.EmbedDisplayConfig{ContactURL: "java\tscript:alert(1)"}, "config.contact_url"},
		"a telephone":           {api.EmbedDisplayConfig{ContactURL: "tel:+491234"}, "config.contact_url"},
		"data":                  {api.EmbedDisplayConfig{ContactURL: "data:text/html,x"}, "config.contact_url"},
		"no scheme":             {api.EmbedDisplayConfig{ContactURL: "shop.example.com/contact"}, "config.contact_url"},
		"a path":                {api.EmbedDisplayConfig{ContactURL: "/contact"}, "config.contact_url"},
		"https without a host":  {api.EmbedDisplayConfig{ContactURL: "https:///contact"}, "config.contact_url"},
		"https, but opaque":     {api.EmbedDisplayConfig{ContactURL: "https:shop.example.com"}, "config.contact_url"},
		"a user":                {api.EmbedDisplayConfig{ContactURL: "https://shop.example.com@evil.example"}, "config.contact_url"},
		"a backslash":           {api.EmbedDisplayConfig{ContactURL: "https://evil.example\\.shop.example.com"}, "config.contact_url"},
		"a space":               {api.EmbedDisplayConfig{ContactURL: " https://shop.example.com"}, "config.contact_url"},
		"two lines":             {api.EmbedDisplayConfig{ContactURL: "https://shop.example.com/\n"}, "config.contact_url"},
		"nobody to write to":    {api.EmbedDisplayConfig{ContactURL: "mailto:"}, "config.contact_url"},
		"no address":            {api.EmbedDisplayConfig{ContactURL: "mailto:help"}, "config.contact_url"},
		"two addresses":         {api.EmbedDisplayConfig{ContactURL: "mailto:a@b.example,c@d.example"}, "config.contact_url"},
		"a URL of 2001":         {api.EmbedDisplayConfig{ContactURL: "https://a.example/" + strings.Repeat("x", 1983)}, "config.contact_url"},
		"a locale of a digit":   {api.EmbedDisplayConfig{Locale: "1"}, "config.locale"},
	} {
		bad := CheckConfig(&row.in)
		if row.want == "" && len(bad) > 0 || row.want != "" && (len(bad) == 0 || bad[0].Path != row.want) {
			t.Errorf("%s: %+v", name, bad)
		}
	}
}

func TestIdentitySecrets(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		s := NewIdentitySecret()
		if !strings.HasPrefix(s, "idsec_") || len(s) != len("idsec_")+43 || seen[s] {
			t.Fatalf("made %q", s)
		}
		seen[s] = true
	}
}

// Browser input never causes a panic, and a list allows only origins equal to one of its
// members.
func FuzzAllowed(f *testing.F) {
	for _, s := range []string{"https://a.example", "null", "https://[::1]:1", "https://a.example:443", "HTTPS://A.EXAMPLE", "https://a.example."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, origin string) {
		list := []string{"https://a.example", "http://localhost:3000"}
		if Allowed(list, origin) && Normal(origin) != list[0] && Normal(origin) != list[1] {
			t.Errorf("%q is allowed", origin)
		}
		if n := Normal(origin); Normal(n) != n {
			t.Errorf("%q, %q: a second time something else", origin, n)
		}
	})
}
