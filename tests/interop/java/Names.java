import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.security.cert.X509Certificate;
import java.util.HexFormat;
import java.util.List;
import java.util.TreeSet;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509KeyManager;
import javax.net.ssl.X509TrustManager;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.kerberos.KerberosName;
import org.apache.kafka.common.security.kerberos.KerberosShortNamer;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/** Asked about names, mapping rules, Kerberos' and stores: one question a line, its words in hexadecimal. */
public class Names {
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, true);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            switch (words[0]) {
                case "name" -> out.println(name(HEX.parseHex(words[1])));
                case "rules" -> out.println(mapped(text(words[1]), text(words[2])));
                case "kerberos" -> out.println(kerberos(text(words[1]), text(words[2])));
                case "key" -> out.println(key(text(words[1]), text(words[2]), text(words[3]), text(words[4])));
                case "trust" -> out.println(trust(text(words[1]), text(words[2]), text(words[3])));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static String text(String hex) {
        return new String(HEX.parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String shown(String text) {
        return "=" + HEX.formatHex(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String name(byte[] encoded) {
        try {
            return shown(new X500Principal(encoded).getName());
        } catch (IllegalArgumentException e) {
            return "refused";
        }
    }

    private static String mapped(String rules, String name) {
        SslPrincipalMapper mapper;
        try {
            mapper = SslPrincipalMapper.fromRules(rules);
        } catch (RuntimeException e) {
            return "refused";
        }
        try {
            return shown(mapper.getName(name));
        } catch (SslPrincipalMapper.NoMatchingRule e) {
            return "none";
        } catch (Exception | StackOverflowError e) {
            return "failed";
        }
    }

    /** Rules one to a line; the default realm is REALM.COM. */
    private static String kerberos(String rules, String name) {
        KerberosShortNamer namer;
        try {
            namer = KerberosShortNamer.fromUnparsedRules("REALM.COM", List.of(rules.split("\n", -1)));
        } catch (RuntimeException e) {
            return "refused";
        }
        try {
            return shown(namer.shortName(KerberosName.parse(name)));
        } catch (IllegalArgumentException | IndexOutOfBoundsException e) {
            return "failed";
        } catch (java.io.IOException e) {
            return "none";
        } catch (StackOverflowError e) {
            return "failed";
        }
    }

    private static KeyStore store(String path, String type, String password) throws Exception {
        KeyStore store = KeyStore.getInstance(type);
        try (FileInputStream in = new FileInputStream(path)) {
            store.load(in, password.isEmpty() ? null : password.toCharArray());
        }
        return store;
    }

    private static String key(String path, String type, String password, String algorithm) {
        try {
            KeyManagerFactory factory = KeyManagerFactory.getInstance("SunX509");
            factory.init(store(path, type, password), password.toCharArray());
            X509KeyManager manager = (X509KeyManager) factory.getKeyManagers()[0];
            String alias = manager.chooseServerAlias(algorithm, null, null);
            if (alias == null) {
                return "none";
            }
            StringBuilder found = new StringBuilder(HEX.formatHex(manager.getPrivateKey(alias).getEncoded()));
            for (X509Certificate one : manager.getCertificateChain(alias)) {
                found.append(' ').append(HEX.formatHex(one.getEncoded()));
            }
            return found.toString();
        } catch (Exception e) {
            return "refused";
        }
    }

    private static String trust(String path, String type, String password) {
        try {
            TrustManagerFactory factory = TrustManagerFactory.getInstance("PKIX");
            factory.init(store(path, type, password));
            TreeSet<String> found = new TreeSet<>();
            for (X509Certificate one : ((X509TrustManager) factory.getTrustManagers()[0]).getAcceptedIssuers()) {
                found.add(HEX.formatHex(one.getEncoded()));
            }
            return String.join(" ", found);
        } catch (Exception e) {
            return "refused";
        }
    }
}
