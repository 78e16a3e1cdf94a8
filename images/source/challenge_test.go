package source

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestChallengesOfOneHeaderAreRead(t *testing.T) {
	const good = `bearer realm="https://auth.test/token",service="s"`
	for name, test := range map[string]struct {
		fields []string
		want   string
	}{
		"one":                        {[]string{`Bearer realm="https://auth.test/token",service="s"`}, good},
		"in other letters":           {[]string{`BEARER Realm="https://auth.test/token",SERVICE=s`}, good},
		"basic before bearer":        {[]string{`Basic realm="x", Bearer realm="https://auth.test/token",service="s"`}, good},
		"bearer before basic":        {[]string{`Bearer realm="https://auth.test/token",service="s", Basic realm="x"`}, good},
		"in two fields":              {[]string{`Basic realm="x"`, `Bearer realm="https://auth.test/token",service="s"`}, good},
		"behind a bare scheme":       {[]string{`Negotiate, Bearer realm="https://auth.test/token",service="s"`}, good},
		"behind a bare field":        {[]string{`Negotiate`, `NTLM`, `Bearer realm="https://auth.test/token",service="s"`}, good},
		"behind a token68":           {[]string{`Negotiate YII+/-._~a==, Bearer realm="https://auth.test/token",service="s"`}, good},
		"token68 of one sign":        {[]string{`Negotiate a=, Bearer realm="https://auth.test/token",service="s"`}, good},
		"commas and quotes in texts": {[]string{`Digest realm="a, Basic realm=\"b\", c", nonce="\\", Bearer realm="https://auth.test/token",service="s"`}, good},
		"spaces and empty elements":  {[]string{" ,\tBearer  realm = \"https://auth.test/token\" ,, service\t=\ts , "}, good},
		"value without quotes":       {[]string{`Bearer realm=https://auth.test/token,service=s`}, good},
		"the first value counts":     {[]string{`Bearer realm="https://auth.test/token",service="s",realm="https://evil.test/"`}, good},
		"bearer without realm":       {[]string{`Bearer service="s"`, `Basic realm="x"`}, `basic realm="x"`},
		"bearer with a wrong realm":  {[]string{`Bearer realm="/token", Basic realm="x"`}, `basic realm="x"`},
		"malformed before good":      {[]string{`="x", "Bearer, `, `Bearer realm="https://auth.test/token`, good}, good},
		"basic alone":                {[]string{`Basic`}, `basic `},
		"empty parameters":           {[]string{`Bearer error="",scope="",realm="https://auth.test/token",x=",",service="s"`}, good},
		"escapes":                    {[]string{`Basic realm="a\"b\\"`}, `basic realm="a\"b\\"`},
		"none that is known":         {[]string{`Negotiate`, `Digest realm="x"`}, `Negotiate`},
	} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{authenticateField: test.fields}
			chooseChallenge(header)
			if have := header.Get(authenticateField); have != test.want {
				t.Errorf("%q instead of %q", have, test.want)
			}
		})
	}
}

// A registry with several ways of authentication is asked in one of those that this program knows.
func TestSeveralChallenges(t *testing.T) {
	const bearer, basic = `Bearer realm="TOKEN",service="test"`, `Basic realm="a, b"`
	for name, test := range map[string]struct {
		fields []string
		want   string
	}{
		"basic first, one field":     {[]string{basic + ", " + bearer}, "Bearer good"},
		"basic first, two fields":    {[]string{basic, bearer}, "Bearer good"},
		"negotiate first, one field": {[]string{"Negotiate, " + bearer}, "Bearer good"},
		"negotiate before basic":     {[]string{"Negotiate, " + basic}, basicHeader},
		"a bearer without realm":     {[]string{`Bearer service="test", ` + basic}, basicHeader},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeRegistry(t)
			layer := noise(t, 1, 1000)
			f.putImage(t, "tag", "amd64", layer)
			f.set(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					r.ParseForm()
					giveToken(w, r)
					return true
				}
				if r.Header.Get("Authorization") == test.want {
					return false
				}
				for _, field := range test.fields {
					w.Header().Add(authenticateField, strings.Replace(field, "TOKEN", f.server.URL+"/token", 1))
				}
				w.WriteHeader(http.StatusUnauthorized)
				return true
			})
			o := testOptions(t)
			o.Credentials = fixedCredential{f.host, Credential{Username: testUser, Password: testPassword}}
			mustRead(t, f.ref(), o, layer)
		})
	}
}

func TestUnknownChallengesAreNamed(t *testing.T) {
	f := newFakeRegistry(t)
	f.putImage(t, "tag", "amd64", noise(t, 1, 10))
	f.set(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Add(authenticateField, "Negotiate, Digest realm=\"x\"")
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	refuses(t, f.ref(), testOptions(t), "401 Unauthorized, and asks for negotiate, digest, where this program knows basic")
}

// The text of the chosen challenge means the same challenge.
func FuzzChallenges(f *testing.F) {
	f.Add(`Negotiate a==, Basic realm="x,\"y", Bearer realm="https://h/",a=b`)
	f.Fuzz(func(t *testing.T, field string) {
		for _, c := range challenges(http.Header{authenticateField: {field}}) {
			if !c.usable() {
				continue
			}
			again := challenges(http.Header{authenticateField: {c.String()}})
			for _, name := range []string{"realm", "service", "scope"} {
				if len(again) != 1 || again[0].scheme != c.scheme || again[0].parameters[name] != c.parameters[name] {
					t.Errorf("%q is %+v, and then %+v", field, c, again)
				}
			}
			if realm, err := url.Parse(c.parameters["realm"]); c.scheme == "bearer" && (err != nil || realm.Host == "") {
				t.Errorf("%q has the realm %v", field, realm)
			}
		}
	})
}
