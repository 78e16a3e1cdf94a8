package rules

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/http/httpproxy"

	"github.com/sandbox-runtime/sandbox-runtime/spec"
)

// ResolveUpstream replaces the value of Config.UpstreamProxy by the proxies, and by the text that other people may read.
// [spec.UpstreamEnv] stands for the environment of this process. An environment without a proxy gives an Upstream that
// is empty. The result is nil for an empty text.
func ResolveUpstream(text string) (shown string, u *spec.Upstream, err error) {
	switch text {
	case "":
		return "", nil, nil
	case spec.UpstreamEnv:
		u, err := fromEnvironment()
		return text, u, err
	}
	parsed, err := spec.ParseUpstreamURL(text)
	if err != nil {
		return "", nil, err
	}
	return spec.ShownUpstream(text), &spec.Upstream{HTTP: parsed.String(), HTTPS: parsed.String()}, nil
}

// fromEnvironment reads HTTP_PROXY, HTTPS_PROXY and NO_PROXY, also in lower case.
func fromEnvironment() (*spec.Upstream, error) {
	env := httpproxy.FromEnvironment()
	u := spec.Upstream{NoProxy: env.NoProxy}
	var err error
	if !env.CGI { // then HTTP_PROXY can be a field of a request; see https://go.dev/s/cgihttpproxy
		u.HTTP, err = completeURL("HTTP_PROXY", env.HTTPProxy)
	}
	var wrong error
	u.HTTPS, wrong = completeURL("HTTPS_PROXY", env.HTTPSProxy)
	return &u, errors.Join(err, wrong)
}

// completeURL is the URL of a variable. HOST:PORT is one of http.
func completeURL(variable, text string) (string, error) {
	if text == "" {
		return "", nil
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := spec.ParseUpstreamURL(text)
	if err != nil {
		return "", fmt.Errorf("%s of the environment: %w", variable, err)
	}
	return u.String(), nil
}

// HasUpstreamEnvironment says whether the environment of this process names a proxy.
func HasUpstreamEnvironment() bool {
	env := httpproxy.FromEnvironment()
	return env.HTTPProxy != "" || env.HTTPSProxy != ""
}
