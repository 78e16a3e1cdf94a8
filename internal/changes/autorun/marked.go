package autorun

// markedGroups are paths that run when somebody starts a build, a test or a program of
// the tree, or that run on another host. Apply puts them onto the host.
func markedGroups() []group {
	return []group{
		{reason: "git fetches other repositories and puts them where it says", patterns: []string{".gitmodules"}},
		{reason: "git passes files to filters that it names", patterns: []string{".gitattributes", "*.git/info/attributes"}},
		{reason: "git continues with commands of it", patterns: []string{"*.git/rebase-merge", "*.git/rebase-apply", "*.git/sequencer"}},
		{reason: "git takes objects or settings from where it says", patterns: []string{"*.git/objects/info/alternates", ".lfsconfig"}},
		{reason: "a CI service runs it", patterns: []string{
			".github/workflows", ".github/actions", ".gitlab-ci.y*ml", ".gitlab/ci", ".circleci", "Jenkinsfile*",
			"azure-pipelines*.y*ml", ".azure-pipelines", ".travis.yml", ".buildkite", ".drone.y*ml", ".drone.jsonnet", ".drone.star",
			".woodpecker", ".woodpecker.y*ml", "bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".cirrus.yml",
			".cirrus.star", ".semaphore", ".teamcity", ".tekton", "cloudbuild.y*ml", "buildspec.y*ml", ".forgejo/workflows", ".gitea/workflows",
			".builds", ".build.yml", ".onedev-buildspec.yml", "action.y*ml",
		}},
		{reason: "it decides about reviews and updates of the repository", patterns: []string{
			"CODEOWNERS", ".github/dependabot.y*ml", "renovate.json*", ".renovaterc*", ".mergify.yml",
		}},
		{reason: "a package manager runs scripts of it, or loads packages from where it says", patterns: []string{
			"package.json", "binding.gyp", ".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn/releases", ".yarn/plugins", ".pnp.cjs",
			".pnp.loader.mjs", ".pnpmfile.cjs", ".pnpmfile.mjs", "pnpm-workspace.yaml", "bunfig.toml", ".bunfig.toml", "deno.json", "deno.jsonc", ".cargo/config",
			".cargo/config.toml", "Cargo.toml", "build.rs", "rust-toolchain*", "setup.py", "setup.cfg", "pyproject.toml",
			".pypirc", "pip.conf", ".config/pip", "uv.toml", "Pipfile", "Gemfile", "*.gemspec", ".gemrc", ".bundle/config", "composer.json",
			"auth.json", "mix.exs", "rebar.config*", "Podfile", "Package.swift", "*.podspec", "NuGet.config", "conanfile.py", "vcpkg.json", "go.work",
			".config/go",
		}},
		{reason: "a build or a test runs it", patterns: []string{
			"Makefile*", "GNUmakefile", "*.mk", "configure", "configure.ac", "CMakeLists.txt", "CMakePresets.json", "CMakeUserPresets.json", "*.cmake", "meson.build", "SConstruct",
			"SConscript", "wscript", "justfile", ".justfile", "Taskfile.y*ml", "Rakefile", "Earthfile", "Tiltfile", "Procfile", "noxfile.py", "tox.ini",
			"conftest.py", "pytest.ini", "tasks.py", "dodo.py", "fabfile.py", "gradlew*", "gradle/wrapper", "*.gradle", "*.gradle.kts", "gradle.properties",
			".gradle/init.d", ".gradle/init.gradle*", ".gradle/gradle.properties", "mvnw*", ".mvn", "pom.xml", ".m2/settings.xml", "build.xml", "build.sbt", ".sbtopts", ".jvmopts", "project/*.sbt",
			".bazelrc", ".bazeliskrc", ".bazelversion", "tools/bazel", "BUILD.bazel", "MODULE.bazel", "WORKSPACE", ".buckconfig*", "Directory.Build.*", "*.csproj", "build.zig", "Setup.hs",
			"Gruntfile.*", "gulpfile.*", "webpack.config.*", "vite.config.*", "vitest.config.*", "rollup.config.*", "jest.config.*", "next.config.*", "babel.config.*",
			"eslint.config.*", ".eslintrc*", "prettier.config.*", ".prettierrc*", "stylelint.config.*", "postcss.config.*", "tailwind.config.*", "playwright.config.*", "cypress.config.*",
			"karma.conf.*", "commitlint.config.*", ".lintstagedrc*", "lint-staged.config.*", "nx.json", "turbo.json", ".mocharc*", ".nycrc*", ".pylintrc", ".rubocop.yml", ".rspec",
			"shell.nix", "default.nix", "flake.nix", "devenv.nix", ".goreleaser.y*ml", ".air.toml",
		}},
		{reason: "an engine of containers or machines builds or starts it", patterns: []string{
			"Dockerfile*", "Containerfile*", "*.dockerfile", "docker-compose*.y*ml", "compose*.y*ml", "Vagrantfile", ".devcontainer", ".devcontainer.json",
			"devfile.yaml", ".devfile.yaml", ".gitpod.yml", ".gitpod.Dockerfile", "skaffold.yaml", ".ddev",
		}},
		{reason: "Python runs it when it starts with this directory in its path", patterns: []string{"sitecustomize.py", "usercustomize.py", "*.pth"}},
		{reason: "an editor offers to run or to install it", patterns: []string{
			".vscode", ".idea", ".run", ".fleet", ".zed", "*.sublime-project", ".nanorc", ".theia", "*.iml",
		}},
		{reason: "it instructs a coding agent", patterns: []string{
			"AGENTS.md", "AGENT.md", "AGENTS.override.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md", "QWEN.md", ".claude", ".cursor", ".cursorrules", ".clinerules", ".windsurf", ".windsurfrules",
			".roo", ".kiro", ".gemini", ".codex", ".amazonq", ".factory", ".github/copilot-instructions.md", ".github/instructions", ".github/prompts", ".github/agents", ".github/chatmodes", ".aider*", ".rules",
		}},
		{reason: "programs of the tree take variables or versions from it", patterns: []string{
			".env", ".env.*", ".flaskenv", ".tool-versions", ".asdfrc", ".nvmrc", ".node-version", ".python-version", ".ruby-version", ".java-version", ".sdkmanrc", ".go-version", ".terraformrc",
		}},
		{reason: "its programs are found by name", patterns: []string{
			".local/bin", ".cargo/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin", "node_modules/.bin",
		}},
		{reason: "the desktop starts programs by it", patterns: []string{".local/share/applications", ".config/mimeapps.list", "*.desktop", ".local/share/mime"}},
		{reason: "it holds credentials, or says where they are sent", patterns: []string{".aws", ".azure", ".config/gcloud", ".config/gh", ".docker", ".password-store", ".pgpass"}},
	}
}
