"""TLS: key stores, trust stores, protocols."""

from ottla.config.types import ANY_LIST, Scope, Type, any_case, between, key, one_of

BOOLEAN = Type.BOOLEAN
STRING = Type.STRING
LIST = Type.LIST
CLASS = Type.CLASS
PASSWORD = Type.PASSWORD
PER_BROKER = Scope.PER_BROKER

SSL = (
    key("ssl.allow.dn.changes", BOOLEAN, False),
    key("ssl.allow.san.changes", BOOLEAN, False),
    key("ssl.cipher.suites", LIST, (), ANY_LIST, PER_BROKER),
    key("ssl.client.auth", STRING, "none", one_of("required", "requested", "none"), PER_BROKER),
    key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), ANY_LIST, PER_BROKER),
    key("ssl.endpoint.identification.algorithm", STRING, "https", None, PER_BROKER),
    key("ssl.engine.factory.class", CLASS, None, None, PER_BROKER),
    key("ssl.key.password", PASSWORD, None, None, PER_BROKER),
    key("ssl.keymanager.algorithm", STRING, "SunX509", None, PER_BROKER),
    key("ssl.keystore.certificate.chain", PASSWORD, None, None, PER_BROKER),
    key("ssl.keystore.key", PASSWORD, None, None, PER_BROKER),
    key("ssl.keystore.location", STRING, None, None, PER_BROKER),
    key("ssl.keystore.password", PASSWORD, None, None, PER_BROKER),
    key("ssl.keystore.type", STRING, "JKS", None, PER_BROKER),
    key("ssl.principal.mapping.rules", STRING, "DEFAULT"),
    key("ssl.protocol", STRING, "TLSv1.3", None, PER_BROKER),
    key("ssl.provider", STRING, None, None, PER_BROKER),
    key("ssl.secure.random.implementation", STRING, None, None, PER_BROKER),
    key("ssl.trustmanager.algorithm", STRING, "PKIX", None, PER_BROKER),
    key("ssl.truststore.certificates", PASSWORD, None, None, PER_BROKER),
    key("ssl.truststore.location", STRING, None, None, PER_BROKER),
    key("ssl.truststore.password", PASSWORD, None, None, PER_BROKER),
    key("ssl.truststore.type", STRING, "JKS", None, PER_BROKER),
)


# ----------------------------------------
# SASL: mechanisms, Kerberos, logins, OAuth.


INT = Type.INT
SHORT = Type.SHORT
LONG = Type.LONG
DOUBLE = Type.DOUBLE

SASL = (
    key("connections.max.reauth.ms", LONG, 0),
    key("sasl.client.callback.handler.class", CLASS, None),
    key("sasl.enabled.mechanisms", LIST, ("GSSAPI",), ANY_LIST, PER_BROKER),
    key("sasl.jaas.config", PASSWORD, None, None, PER_BROKER),
    key("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", None, PER_BROKER),
    key("sasl.kerberos.min.time.before.relogin", LONG, 60000, None, PER_BROKER),
    key("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), ANY_LIST, PER_BROKER),
    key("sasl.kerberos.service.name", STRING, None, None, PER_BROKER),
    key("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, None, PER_BROKER),
    key("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, None, PER_BROKER),
    key("sasl.login.callback.handler.class", CLASS, None),
    key("sasl.login.class", CLASS, None),
    key("sasl.login.connect.timeout.ms", INT, None),
    key("sasl.login.read.timeout.ms", INT, None),
    key("sasl.login.refresh.buffer.seconds", SHORT, 300, None, PER_BROKER),
    key("sasl.login.refresh.min.period.seconds", SHORT, 60, None, PER_BROKER),
    key("sasl.login.refresh.window.factor", DOUBLE, 0.8, None, PER_BROKER),
    key("sasl.login.refresh.window.jitter", DOUBLE, 0.05, None, PER_BROKER),
    key("sasl.login.retry.backoff.max.ms", LONG, 10000),
    key("sasl.login.retry.backoff.ms", LONG, 100),
    key("sasl.mechanism.controller.protocol", STRING, "GSSAPI"),
    key("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", None, PER_BROKER),
    key("sasl.oauthbearer.assertion.algorithm", STRING, "RS256", any_case("ES256", "RS256")),
    key("sasl.oauthbearer.assertion.claim.aud", STRING, None),
    key("sasl.oauthbearer.assertion.claim.exp.seconds", INT, 300, between(0, 86400)),
    key("sasl.oauthbearer.assertion.claim.iss", STRING, None),
    key("sasl.oauthbearer.assertion.claim.jti.include", BOOLEAN, False),
    key("sasl.oauthbearer.assertion.claim.nbf.seconds", INT, 60, between(0, 3600)),
    key("sasl.oauthbearer.assertion.claim.sub", STRING, None),
    key("sasl.oauthbearer.assertion.file", STRING, None),
    key("sasl.oauthbearer.assertion.private.key.file", STRING, None),
    key("sasl.oauthbearer.assertion.private.key.passphrase", PASSWORD, None),
    key("sasl.oauthbearer.assertion.template.file", STRING, None),
    key("sasl.oauthbearer.client.credentials.client.id", STRING, None),
    key("sasl.oauthbearer.client.credentials.client.secret", PASSWORD, None),
    key("sasl.oauthbearer.clock.skew.seconds", INT, 30),
    key("sasl.oauthbearer.expected.audience", LIST, (), ANY_LIST),
    key("sasl.oauthbearer.expected.issuer", STRING, None),
    key("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000),
    key("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10000),
    key("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100),
    key("sasl.oauthbearer.jwks.endpoint.url", STRING, None),
    key(
        "sasl.oauthbearer.jwt.retriever.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    ),
    key(
        "sasl.oauthbearer.jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
    ),
    key("sasl.oauthbearer.scope", STRING, None),
    key("sasl.oauthbearer.scope.claim.name", STRING, "scope"),
    key("sasl.oauthbearer.sub.claim.name", STRING, "sub"),
    key("sasl.oauthbearer.token.endpoint.url", STRING, None),
    key("sasl.server.callback.handler.class", CLASS, None),
    key("sasl.server.max.receive.size", INT, 524_288),
)
